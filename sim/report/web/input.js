// Mouse, fingers and keys.

const fingers = new Map();
let drag = null;

function place(event) {
  const box = byId("ops").getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

function pressed(event) {
  const [x, y] = place(event);
  fingers.set(event.pointerId, x);
  byId("ops").setPointerCapture(event.pointerId);
  drag = { x, y, from: scene.from, to: scene.to, top: byId("scroll").scrollTop, moved: false, band: event.shiftKey, apart: apart() };
  hint(null);
}

const apart = () => { const xs = [...fingers.values()]; return xs.length === 2 ? Math.abs(xs[0] - xs[1]) : 0; };

function moved(event) {
  const [x, y] = place(event);
  if (!fingers.has(event.pointerId)) return pointed(x, y, event);
  fingers.set(event.pointerId, x);
  if (!drag) return;
  drag.moved ||= Math.hypot(x - drag.x, y - drag.y) > 4;
  if (fingers.size === 2 && drag.apart > 10) {
    const xs = [...fingers.values()], middle = secondsAt((xs[0] + xs[1]) / 2);
    zoom(Math.min(Math.max(drag.apart / Math.max(apart(), 5), 0.5), 2), middle);
    drag.apart = apart();
  } else if (drag.moved && !drag.band) {
    const by = ((drag.x - x) * (drag.to - drag.from)) / (scene.width - scene.gutter);
    show(drag.from + by, drag.to + by);
    if (event.pointerType === "mouse") byId("scroll").scrollTop = drag.top + drag.y - y;
  } else if (drag.band) { drag.now = x; soon(); }
}

function released(event) {
  const [x, y] = place(event);
  fingers.delete(event.pointerId);
  if (drag && !drag.moved) choose(under(x, y));
  else if (drag && drag.band) show(Math.min(secondsAt(drag.x), secondsAt(x)), Math.max(secondsAt(drag.x), secondsAt(x)));
  drag = null;
}

function pointed(x, y, event) {
  const of = under(x, y), row = of && of.block !== undefined ? of.p.rows[of.p.rowOf[of.block]] : null;
  const before = scene.over && scene.over.row;
  scene.over = of ? { ...of, row } : null;
  if ((row && row.rank) !== (before && before.rank)) soon();
  hint(of, event.clientX, event.clientY);
}

function wheeled(event) {
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.008), secondsAt(place(event)[0]));
  } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    event.preventDefault();
    pan((event.deltaX || event.deltaY) / 1200);
  }
}

function along(by) {
  const of = scene.chosen;
  if (!of || of.block === undefined) return middle();
  const row = of.p.rows[of.p.rowOf[of.block]], next = of.block + by;
  if (next >= row.from && next < row.to) choose({ p: of.p, block: next }, true);
}

// The block nearest to the middle of the view, on the first row that is seen.
function middle() {
  const box = byId("scroll"), x = (scene.gutter + scene.width) / 2;
  for (const item of scene.items) {
    if (!item.row || item.y < box.scrollTop) continue;
    const { p, row } = item, at = above(p.reach, secondsAt(x) / p.tick, row.from, row.to);
    return choose({ p, block: Math.min(at, row.to - 1) });
  }
}

let turn = 0;
function jump(which) {
  const of = scene.chosen;
  if (!of || of.block === undefined) return;
  const peers = which === "l" ? partners(of.p, of.block) : [of.p.need[of.block]];
  const block = peers[which === "l" ? turn++ % Math.max(peers.length, 1) : 0];
  if (block !== undefined && block >= 0) choose({ p: of.p, block }, true);
}

const KEYS = {
  ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), a: () => pan(-0.2), d: () => pan(0.2),
  "+": () => zoom(0.6), "=": () => zoom(0.6), w: () => zoom(0.6), "-": () => zoom(1 / 0.6), s: () => zoom(1 / 0.6),
  0: whole, Home: whole, n: () => along(1), p: () => along(-1), c: () => jump("c"), l: () => jump("l"), Enter: middle,
  ArrowUp: () => { byId("scroll").scrollTop -= 60; }, ArrowDown: () => { byId("scroll").scrollTop += 60; },
  Escape: () => { choose(null); hint(null); }, "/": () => byId("find").focus(),
};

function keyed(event) {
  const act = KEYS[event.key] || KEYS[event.key.toLowerCase()];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act();
}

function listens() {
  const ops = byId("ops");
  ops.addEventListener("pointerdown", pressed);
  ops.addEventListener("pointermove", moved);
  ops.addEventListener("pointerup", released);
  ops.addEventListener("pointercancel", (event) => { fingers.delete(event.pointerId); drag = null; });
  ops.addEventListener("pointerleave", () => { scene.over = null; hint(null); });
  ops.addEventListener("wheel", wheeled, { passive: false });
  ops.addEventListener("keydown", keyed);
  byId("scroll").addEventListener("scroll", soon);
  for (const [id, key] of [["in", "+"], ["out", "-"], ["left", "ArrowLeft"], ["right", "ArrowRight"], ["all", "0"]]) {
    byId(id).addEventListener("click", KEYS[key]);
  }
}
