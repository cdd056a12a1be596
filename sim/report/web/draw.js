// Drawing: blocks straight from the columns, words over them. Blocks smaller than a dot share it.

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let ink = {};

function colours() {
  for (const name of ["paper", "ink", "soft", "line", "band", "mark", "path", "idle"]) ink[name] = css(`--${name}`);
  ink.packed = { paper: packed(ink.paper), idle: packed(ink.idle) };
  for (const p of scene.panels) {
    const plain = p.looks.map((look) => legible(look.colour));
    const faded = plain.map((colour) => mixed(colour, ink.paper, 0.82));
    const pale = p.looks.map((look) => look.pale || look.colour);
    const all = [...plain, ...faded, ...pale].map(packed);
    p.colours = { count: p.looks.length, all: Uint32Array.from(all) }; // plain, faded, waiting
  }
}

// Dark colours are lifted where the paper is dark too.
function legible(colour) {
  const light = (text) => [0.3, 0.59, 0.11].reduce((sum, of, k) => sum + of * parseInt(text.slice(1 + 2 * k, 3 + 2 * k), 16), 0);
  return light(ink.paper) < 128 && light(colour) < 105 ? mixed(colour, "#ffffff", 0.32) : colour;
}

function mixed(colour, other, share) {
  const part = (text, k) => parseInt(text.slice(1 + 2 * k, 3 + 2 * k), 16);
  const parts = [0, 1, 2].map((k) => Math.round(part(colour, k) * (1 - share) + part(other, k) * share));
  return `#${parts.map((k) => k.toString(16).padStart(2, "0")).join("")}`;
}

let waiting = false;
function soon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}

function sized(canvas, width, height) {
  const dots = window.devicePixelRatio || 1, w = Math.round(width * dots), h = Math.round(height * dots);
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; canvas.style.height = `${height}px`; }
  const ctx = canvas.getContext("2d");
  ctx.setTransform(dots, 0, 0, dots, 0, 0);
  return ctx;
}

function draw() {
  const area = byId("scroll");
  scene.width = area.clientWidth;
  if (scene.width < 60) return; // not laid out yet: the observer calls again
  scene.gutter = scene.width < 560 ? 74 : 132;
  scene.high = Math.min(scene.tall, Math.max(220, Math.round(window.innerHeight * 0.62)));
  area.style.height = `${scene.high + 2}px`;
  byId("tall").style.height = `${scene.tall}px`;
  Object.assign(byId("ops").dataset, { from: scene.from, to: scene.to, gutter: scene.gutter });
  const ctx = sized(byId("ops"), scene.width, scene.high), top = area.scrollTop;
  cleared(ctx, ink.packed.paper);
  const seen = scene.items.filter((item) => item.y + item.h > top && item.y < top + scene.high);
  const labels = seen.flatMap((item) => (item.row ? blocks(item, item.y - top) : []));
  ctx.putImageData(raster.image, 0, 0);
  for (const of of labels) text(ctx, ...of);
  for (const item of seen) if (item.head) heading(ctx, item, item.y - top);
  if (scene.critical) path(ctx, top);
  marks(ctx, top);
  for (const item of seen) if (item.row) label(ctx, item, item.y - top);
  axis(ctx);
  memory();
}

function heading(ctx, item, y) {
  ctx.fillStyle = ink.band;
  ctx.fillRect(0, y, scene.width, item.h - 2);
  ctx.fillStyle = ink.ink;
  ctx.font = "600 13px system-ui, sans-serif";
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  const end = seconds(item.head.seconds), room = scene.width - ctx.measureText(end).width - 30;
  ctx.fillText(cut(ctx, item.head.name, room), 8, y + item.h / 2 - 1);
  ctx.textAlign = "right";
  ctx.fillText(end, scene.width - 8, y + item.h / 2 - 1);
}

// A block is bright unless a search or the critical path leaves it out.
function bright(p, i) {
  return (!p.matches || p.matches[p.called[i]]) && (!scene.critical || !p.path_block || p.critical[i]);
}

function blocks(item, y) {
  const { p, row, h } = item, { start, end, look, moves, colours: hues } = p, labels = [], dots = raster.dots;
  const left = Math.round(scene.gutter * dots), right = raster.width, top = Math.round(y * dots), low = Math.round((y + h) * dots);
  const scale = ((right - left) / (scene.to - scene.from)) * p.tick, shift = xOf(0) * dots, last = scene.to / p.tick;
  const third = Math.round((low - top) / 3), small = new Bands(hues.all, top, low - top);
  if (row.computes) plot(ink.packed.idle, Math.max(Math.round(shift), left), top, Math.round(xOf(p.seconds) * dots), low);
  for (let i = above(p.reach, Math.max(scene.from, 0) / p.tick, row.from, row.to); i < row.to && start[i] < last; i++) {
    const x = shift + start[i] * scale, to = shift + end[i] * scale, of = look[i], lit = bright(p, i);
    const colour = lit ? of : of + hues.count;
    if (to - x < 1.5) { small.add(Math.floor(x), colour, Math.max(to - x, 1e-9) * (lit && p.matches ? 1e6 : 1)); continue; }
    const a = Math.max(Math.round(x), left), b = Math.min(Math.round(to), right), gap = to - x > 5 * dots ? 1 : 0;
    if (p.looks[of].pale && moves[i] > start[i]) {
      const since = Math.min(Math.max(Math.round(shift + moves[i] * scale), a), b);
      plot(hues.all[colour], since, top, b - gap, low);
      plot(hues.all[lit ? of + 2 * hues.count : colour], a, top + third, since, low - third);
    } else plot(hues.all[colour], a, top, b - gap, low);
    if (h > 14 && b - a > 18 * dots) labels.push([p, y, i, a / dots, b / dots, lit ? p.looks[of].ink : ink.soft]);
  }
  small.flush();
  return labels;
}

function text(ctx, p, y, i, a, b, colour) {
  const name = p.count[i] > 1 ? `${p.count[i]} ops` : p.names[p.called[i]];
  const number = p.microbatch[i] >= 0 ? String(p.microbatch[i]) : "";
  ctx.font = "12px system-ui, sans-serif";
  const shown = ctx.measureText(name).width < b - a - 8 ? name : b - a > 70 ? cut(ctx, name, b - a - 8) : number;
  if (!shown || ctx.measureText(shown).width > b - a - 6) return;
  ctx.fillStyle = colour;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.fillText(shown, (Math.max(a, scene.gutter) + b) / 2, y + TALL / 2 + 0.5);
}

function cut(ctx, name, room) {
  if (ctx.measureText(name).width <= room) return name;
  let n = Math.min(name.length, Math.floor(room / 4));
  while (n > 1 && ctx.measureText(`${name.slice(0, n)}…`).width > room) n--;
  return n > 1 ? `${name.slice(0, n)}…` : "";
}

function label(ctx, item, y) {
  const { row, h } = item, phone = scene.gutter < 100;
  let used = 6;
  ctx.fillStyle = ink.paper;
  const above = item.first ? GAP : BETWEEN;
  ctx.fillRect(0, y - above, scene.gutter, h + BETWEEN + above);
  if (item.first) {
    ctx.fillStyle = ink.line;
    if (GAP > 3) ctx.fillRect(0, y - 3, scene.width, 0.5);
    ctx.fillStyle = ink.ink;
    ctx.font = `600 ${h > 14 ? 12 : 10}px system-ui, sans-serif`;
    ctx.textAlign = "left"; ctx.textBaseline = "middle";
    const rank = `rank ${row.rank}${row.alike > 1 ? ` x ${row.alike.toLocaleString("en")}` : ""}`;
    ctx.fillText(rank, 6, y + Math.max(h, 9) / 2);
    used = Math.max(phone ? 70 : 56, ctx.measureText(rank).width + 12);
  }
  if (h < 9) return;
  const size = h > 14 ? 11 : 9.5;
  ctx.font = `${size}px system-ui, sans-serif`;
  ctx.fillStyle = ink.soft;
  ctx.textAlign = "right"; ctx.textBaseline = "middle";
  const name = cut(ctx, row.stream, scene.gutter - used - 6);
  if (name) ctx.fillText(name, scene.gutter - 5, y + h / 2 + 0.5);
}

function axis(ctx) {
  ctx.fillStyle = ink.paper;
  ctx.fillRect(0, 0, scene.width, AXIS - 1);
  ctx.fillStyle = ink.line;
  ctx.fillRect(0, AXIS - 2, scene.width, 1);
  ctx.font = "11px system-ui, sans-serif";
  ctx.fillStyle = ink.soft;
  ctx.textBaseline = "middle"; ctx.textAlign = "center";
  for (const s of places()) {
    const x = xOf(s);
    if (x < scene.gutter) continue;
    ctx.fillRect(x, AXIS - 6, 1, 5);
    const shown = seconds(s), half = ctx.measureText(shown).width / 2;
    if (x - half > scene.gutter - 4 && x + half < scene.width) ctx.fillText(shown, x, 9);
  }
}

function places() {
  const room = Math.max(2, Math.floor((scene.width - scene.gutter) / 95)), rough = (scene.to - scene.from) / room;
  const power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough);
  const out = [];
  for (let k = Math.ceil(scene.from / step); k * step <= scene.to; k++) out.push(Number((k * step).toPrecision(12)));
  return out;
}
