// What is in view: the stretch of time, the rows that are shown and where each lies.

const scene = {
  panels: [], from: 0, to: 1, span: 1, items: [], tall: 0, hidden: new Set(),
  critical: false, links: true, chosen: null, over: null, gutter: 120, width: 800, high: 400,
};

const AXIS = 24, HEAD = 24;
const SIZES = { plain: { tall: 22, thin: 11, gap: 5, between: 1 }, compact: { tall: 10, thin: 3, gap: 2, between: 0 } };
let { tall: TALL, thin: THIN, gap: GAP, between: BETWEEN } = SIZES.plain;

function compact(yes) {
  ({ tall: TALL, thin: THIN, gap: GAP, between: BETWEEN } = yes ? SIZES.compact : SIZES.plain);
  arranged();
}

function arranged() {
  scene.items = [];
  let y = AXIS;
  for (const p of scene.panels) {
    if (scene.panels.length > 1) { scene.items.push({ head: p, y, h: HEAD }); y += HEAD; }
    let rank = null;
    for (const row of p.rows) {
      if (scene.hidden.has(row.stream)) continue;
      if (row.rank !== rank) y += GAP;
      const h = row.computes ? TALL : THIN;
      scene.items.push({ row, p, y, h, first: row.rank !== rank });
      row.y = y; row.h = h; rank = row.rank; y += h + BETWEEN;
    }
    y += GAP;
  }
  for (const p of scene.panels) for (const row of p.rows) if (scene.hidden.has(row.stream)) row.y = null;
  scene.tall = y + GAP;
}

const xOf = (s) => scene.gutter + ((s - scene.from) / (scene.to - scene.from)) * (scene.width - scene.gutter);
const secondsAt = (x) => scene.from + ((x - scene.gutter) / (scene.width - scene.gutter)) * (scene.to - scene.from);

// Show a stretch of time: never less than a few nanoseconds, never much beyond the ends.
function show(from, to) {
  const least = Math.max(scene.span * 1e-8, 1e-9);
  let size = Math.min(Math.max(to - from, least), scene.span * 1.04);
  const middle = (from + to) / 2, edge = scene.span * 0.02;
  const begin = Math.min(Math.max(middle - size / 2, -edge), scene.span + edge - size);
  scene.from = begin; scene.to = begin + size;
  soon();
}

function zoom(factor, at = (scene.from + scene.to) / 2) {
  show(at - (at - scene.from) * factor, at + (scene.to - at) * factor);
}

const pan = (share) => {
  const by = (scene.to - scene.from) * share;
  show(scene.from + by, scene.to + by);
};

const whole = () => show(-scene.span * 0.01, scene.span * 1.01);

// What lies under a point of the canvas: a block, or the idle interval of a rank, or nothing.
function under(x, y) {
  if (x < scene.gutter || y < AXIS) return null;
  const down = y + byId("scroll").scrollTop;
  const item = scene.items.find((one) => one.row && down >= one.y && down < one.y + one.h + BETWEEN);
  if (!item) return null;
  const { p, row } = item, s = secondsAt(x), near = (3 * (scene.to - scene.from)) / (scene.width - scene.gutter);
  let best = -1, least = near;
  for (let i = above(p.reach, (s - near) / p.tick, row.from, row.to); i < row.to && startOf(p, i) <= s + near; i++) {
    const off = Math.max(startOf(p, i) - s, s - endOf(p, i), 0);
    if (off < least || (off === 0 && least === 0)) { best = i; least = off; }
  }
  return best >= 0 ? { p, block: best } : idle(p, row, s);
}

function idle(p, row, s) {
  if (!p.bubble_rank || !row.computes) return null;
  const rank = p.ranks.indexOf(row.rank);
  const from = above(p.bubble_rank, rank - 1, 0, p.bubble_rank.length);
  const to = above(p.bubble_rank, rank, from, p.bubble_rank.length);
  const k = above(p.bubble_end, s / p.tick, from, to);
  return k < to && p.bubble_start[k] <= s / p.tick ? { p, bubble: k } : null;
}
