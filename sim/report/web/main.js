// Everything together: search, streams, legend, and the first picture.

function search() {
  const text = byId("find").value.trim().toLowerCase();
  let found = 0;
  for (const p of scene.panels) {
    p.matches = text ? Uint8Array.from(p.names, (name) => Number(name.toLowerCase().includes(text))) : null;
    if (text) for (let i = 0; i < p.blocks; i++) found += p.matches[p.called[i]];
  }
  byId("found").textContent = text ? `${found.toLocaleString("en")} found` : "";
  soon();
}

// The next match behind what is chosen, in order of panels, rows and time.
function next() {
  const all = scene.panels, of = scene.chosen;
  let at = of && of.block !== undefined ? all.indexOf(of.p) : 0, block = of && of.block !== undefined ? of.block + 1 : 0;
  for (let k = 0; k <= all.length; k++, at = (at + 1) % all.length, block = 0) {
    const p = all[at];
    for (let i = block; i < p.blocks; i++) if (p.matches && p.matches[p.called[i]]) return choose({ p, block: i }, true);
  }
}

function streams() {
  const names = [...new Set(scene.panels.flatMap((p) => p.rows.map((row) => row.stream)))];
  const box = byId("streams").querySelector("fieldset");
  for (const name of names) {
    const label = document.createElement("label"), tick = Object.assign(document.createElement("input"), { type: "checkbox", checked: true });
    tick.dataset.stream = name;
    tick.addEventListener("change", () => {
      if (tick.checked) scene.hidden.delete(name); else scene.hidden.add(name);
      arranged(); soon();
    });
    label.append(tick, ` ${name}`);
    box.append(label);
  }
}

function ticked() {
  for (const tick of document.querySelectorAll("[data-stream]")) tick.checked = !scene.hidden.has(tick.dataset.stream);
}

function legend() {
  const seen = new Map();
  for (const p of scene.panels) for (const look of p.looks) seen.set(look.label, legible(look.colour));
  const entry = (label, colour) => {
    const item = document.createElement("li"), box = document.createElement("i");
    box.style.background = colour;
    item.append(box, label);
    return item;
  };
  byId("legend").replaceChildren(...[...seen].map(([label, colour]) => entry(label, colour)));
  if (scene.panels.some((p) => p.looks.some((look) => look.pale))) byId("legend").append(entry("pale: waits for a peer", "var(--line)"));
  if (scene.panels.length > 1 && scene.panels.some((p) => p.memory_ranks.length)) {
    scene.panels.forEach((p, k) => byId("legend").append(entry(`memory of ${p.name}`, legible(meta.lines[k % meta.lines.length]))));
  }
}

// What of a timeline is not in the page, in a sentence.
function said() {
  const lines = [];
  for (const p of scene.panels) {
    const whose = scene.panels.length > 1 ? `${p.name}: ` : "";
    if (p.ranks.length < p.all_ranks) lines.push(`${whose}${p.ranks.length} of ${p.all_ranks.toLocaleString("en")} ranks are shown.`);
    if (p.largest > 1) lines.push(`${whose}${p.ops.toLocaleString("en")} ops are summarised in ${p.blocks.toLocaleString("en")} blocks.`);
  }
  byId("said").textContent = lines.join(" ");
  byId("said").hidden = !lines.length;
}

async function start() {
  const buffer = await unpacked(byId("columns").textContent);
  scene.panels = meta.panels.map((panel) => opened(panel, buffer));
  scene.span = Math.max(...scene.panels.map((p) => p.seconds), 1e-9);
  colours(); arranged(); streams(); legend(); said(); listens(); whole();
  byId("critical").disabled = !scene.panels.some((p) => p.path_block && p.path_block.length);
  byId("critical").addEventListener("change", (event) => { scene.critical = event.target.checked; soon(); });
  byId("compact").checked = scene.panels.length > 1 && scene.tall > window.innerHeight * 0.62;
  compact(byId("compact").checked);
  byId("compact").addEventListener("change", (event) => { compact(event.target.checked); soon(); });
  byId("links").addEventListener("change", (event) => { scene.links = event.target.checked; soon(); });
  byId("find").addEventListener("input", search);
  byId("find").addEventListener("keydown", (event) => { if (event.key === "Enter") next(); });
  new ResizeObserver(soon).observe(byId("scroll"));
  window.addEventListener("resize", soon);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colours(); legend(); scene.curves = null; soon(); });
  requestAnimationFrame(() => requestAnimationFrame(() => {
    document.body.dataset.ready = String(Math.round(performance.now())); // ms, for whoever measures
  }));
}

sorts();
notes();
if (!meta.panels.length) {
  byId("timeline").hidden = true;
  document.body.dataset.ready = "0";
} else start().catch((error) => {
  byId("said").hidden = false;
  byId("said").textContent = `The timeline cannot be shown by this browser: ${error.message}`;
});
