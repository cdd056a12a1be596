// What is chosen or pointed at: its facts in words, links to its peers, and the critical path.

function facts(p, i) {
  const row = p.rows[p.rowOf[i]], look = p.looks[p.look[i]];
  const alike = row.alike > 1 ? ` (stands for ${row.alike.toLocaleString("en")} ranks)` : "";
  const where = [`rank ${row.rank}${alike}`, `stream ${row.stream}`, look.label];
  for (const [name, column] of [["stage", p.stage], ["microbatch", p.microbatch], ["layer", p.layer]]) {
    if (column[i] >= 0) where.push(`${name} ${column[i]}`);
  }
  if (p.step[i] > 0) where.push(`step ${p.step[i]}`);
  const lines = [title(p, i), where.join(" · "), `${seconds(startOf(p, i))} to ${seconds(endOf(p, i))}: ${seconds(endOf(p, i) - startOf(p, i))}`];
  if (p.count[i] > 1) lines.push(`summarised: ops fill ${p.busy[i] / 2} % of this stretch`);
  const wait = (p.moves[i] - p.start[i]) * p.tick;
  if (look.pale && p.count[i] === 1 && wait > 2 * p.tick) {
    lines.push(`waits ${seconds(wait)} for ${p.last[i] >= 0 ? name(p, p.last[i]) : "a peer"}, then moves data`);
  }
  lines.push(cause(p, i));
  if (p.critical[i]) lines.push("on the critical path");
  return lines.filter(Boolean);
}

function cause(p, i) {
  const need = p.need[i];
  if (need < 0 || need === i) return need < 0 && p.count[i] === 1 ? "started first: waited for no op" : "";
  const gap = (p.start[i] - p.end[need]) * p.tick;
  const late = gap > 4 * p.tick && p.count[need] === 1 ? `${seconds(gap)} after` : "when";
  return `started ${late} ${name(p, need)} ended`;
}

const title = (p, i) => (p.count[i] > 1 ? `${p.count[i]} ops, the first ${p.names[p.called[i]]}` : p.names[p.called[i]]);

function name(p, i) {
  const row = p.rows[p.rowOf[i]], batch = p.microbatch[i] >= 0 ? ` of microbatch ${p.microbatch[i]}` : "";
  return `${title(p, i)}${batch} on rank ${row.rank} (${row.stream})`;
}

function described(of) {
  const { p } = of;
  if (of.block !== undefined) return facts(p, of.block);
  const k = of.bubble, from = p.bubble_start[k] * p.tick, to = p.bubble_end[k] * p.tick;
  const lines = [`idle: ${p.bubble_causes[p.bubble_cause[k]]}`, `rank ${p.ranks[p.bubble_rank[k]]}`, `${seconds(from)} to ${seconds(to)}: ${seconds(to - from)}`];
  if (p.bubble_block[k] >= 0) lines.push(`waits for ${name(p, p.bubble_block[k])}`);
  return lines;
}

function paragraphs(box, lines) {
  box.replaceChildren(...lines.map((line) => Object.assign(document.createElement("p"), { textContent: line })));
}

function hint(of, x, y) {
  const box = byId("hint");
  box.hidden = !of;
  if (!of) return;
  paragraphs(box, typeof of === "string" ? [of] : described(of));
  const { width, height } = box.getBoundingClientRect();
  box.style.left = `${Math.max(8, Math.min(x + 14, window.innerWidth - width - 8))}px`;
  box.style.top = `${y + 16 + height > window.innerHeight ? Math.max(8, y - height - 12) : y + 16}px`;
}

function choose(of, follow = false) {
  scene.chosen = of;
  const box = byId("chosen");
  box.dataset.block = of && of.block !== undefined ? of.block : "";
  if (of) {
    paragraphs(box, described(of));
    const go = document.createElement("p"), { p } = of;
    const add = (text, block) => {
      if (block < 0 || block === of.block) return;
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: `${text}: ${name(p, block)}` });
      button.addEventListener("click", () => choose({ p, block }, true));
      go.append(button);
    };
    if (of.bubble !== undefined) add("waited for", p.bubble_block[of.bubble]);
    else {
      add("caused by", p.need[of.block]);
      add("came last", p.last[of.block]);
      partners(p, of.block).slice(0, 8).forEach((block) => add("partner", block));
    }
    if (go.childNodes.length) box.append(go);
    if (follow) reveal(of);
  } else paragraphs(box, ["Nothing is chosen."]);
  soon();
}

// Bring a block into view: its row, and its time with room around it where it is outside.
function reveal(of) {
  const { p, block } = of, row = p.rows[p.rowOf[block]], box = byId("scroll");
  if (row.y === null) { scene.hidden.delete(row.stream); ticked(); arranged(); }
  if (row.y < box.scrollTop + AXIS || row.y + row.h > box.scrollTop + scene.high) box.scrollTop = row.y - scene.high / 2;
  const a = startOf(p, block), b = endOf(p, block), size = scene.to - scene.from;
  if (b < scene.from || a > scene.to) show((a + b - size) / 2, (a + b + size) / 2);
  if (b - a < (scene.to - scene.from) / 400) { const half = Math.max((b - a) * 30, 1e-9); show((a + b) / 2 - half, (a + b) / 2 + half); }
}

function marks(ctx, top) {
  const of = scene.chosen;
  if (drag && drag.band && drag.moved) {
    ctx.globalAlpha = 0.25; ctx.fillStyle = ink.mark;
    ctx.fillRect(drag.x, AXIS, drag.now - drag.x, scene.high); ctx.globalAlpha = 1;
  }
  if (!of || of.block === undefined) return;
  if (scene.links) {
    const { p, block } = of;
    if (p.need[block] >= 0 && p.need[block] !== block) arrow(ctx, p, p.need[block], block, top, ink.ink);
    partners(p, block).forEach((other) => arrow(ctx, p, block, other, top, ink.mark, true));
  }
  frame(ctx, of.p, of.block, top, ink.mark, 2.5);
}

function frame(ctx, p, i, top, colour, width) {
  const row = p.rows[p.rowOf[i]];
  if (row.y === null) return;
  const a = Math.max(xOf(startOf(p, i)), scene.gutter), b = Math.max(xOf(endOf(p, i)), a + 2);
  ctx.strokeStyle = colour; ctx.lineWidth = width;
  ctx.strokeRect(a, row.y - top, Math.min(b, scene.width + 4) - a, row.h);
}

// A line from the end of one block to the start of another, or between the middles of partners.
function arrow(ctx, p, from, to, top, colour, peers = false) {
  const a = p.rows[p.rowOf[from]], b = p.rows[p.rowOf[to]];
  if (a.y === null || b.y === null) return;
  const middle = (i) => xOf((startOf(p, i) + endOf(p, i)) / 2);
  const x = peers ? middle(from) : xOf(endOf(p, from)), u = peers ? middle(to) : xOf(startOf(p, to));
  const y = a.y - top + a.h / 2, v = b.y - top + b.h / 2;
  const bend = Math.min(16, Math.abs(u - x) / 2);
  ctx.strokeStyle = ctx.fillStyle = colour; ctx.lineWidth = 1.5;
  ctx.beginPath(); ctx.moveTo(x, y); ctx.bezierCurveTo(x + bend, y, u - bend, v, u, v); ctx.stroke();
  ctx.beginPath(); ctx.arc(u, v, 3, 0, 7); ctx.fill();
}

function path(ctx, top) {
  for (const p of scene.panels) {
    if (!p.path_block) continue;
    ctx.strokeStyle = ctx.fillStyle = ink.path;
    let before = null, rank = -1;
    for (let k = above(p.path_end, Math.max(scene.from, 0) / p.tick, 0, p.path_end.length); k < p.path_end.length; k++) {
      const a = xOf(p.path_start[k] * p.tick), b = xOf(p.path_end[k] * p.tick);
      if (a > scene.width) break;
      const row = p.rows[p.rowOf[p.path_block[k]]];
      if (row.y === null) continue;
      const y = row.y - top + row.h - 1.5;
      ctx.fillRect(a, y - 1.5, Math.max(b - a, 1), 3);
      if (before !== null && before !== y && (row.rank !== rank || b - a > 6)) ctx.fillRect(a - 0.75, Math.min(before, y), 1.5, Math.abs(y - before));
      before = y; rank = row.rank;
    }
  }
}
