// The columns behind the page: decoded once, then typed arrays over one buffer.

const byId = (id) => document.getElementById(id);
const meta = JSON.parse(byId("meta").textContent);

function bytes(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text);
  const out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
}

async function unpacked(text) {
  const stream = new Blob([bytes(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

const TYPES = {
  Uint8: Uint8Array, Int8: Int8Array, Uint16: Uint16Array, Int16: Int16Array,
  Uint32: Uint32Array, Int32: Int32Array, Float32: Float32Array,
};

// A panel with its columns, and what is found quickly from them.
function opened(panel, buffer) {
  const p = { ...panel };
  for (const [name, of] of Object.entries(panel.columns)) {
    p[name] = new TYPES[of.type](buffer, of.at, of.rows);
  }
  p.tick = p.seconds / 4294967295;
  p.rows.forEach((row) => { row.panel = p; });
  p.reach = reach(p);
  p.rowOf = new Uint32Array(p.blocks);
  p.rows.forEach((row, k) => p.rowOf.fill(k, row.from, row.to));
  p.critical = new Uint8Array(p.blocks);
  for (const block of p.path_block || []) p.critical[block] = 1;
  p.partOf = null; // made when it is first asked for
  p.matches = null;
  return p;
}

// The latest end so far in each row: ascending, so that what is in view is found by halving.
function reach(p) {
  const out = new Uint32Array(p.blocks);
  for (const row of p.rows) {
    let latest = 0;
    for (let i = row.from; i < row.to; i++) out[i] = latest = Math.max(latest, p.end[i]);
  }
  return out;
}

// Where the members of each part lie, and the memberships of each block.
function partOf(p) {
  const begins = [], of = new Map();
  for (let k = 0; k < p.part.length; k++) {
    if (k === 0 || p.part[k] !== p.part[k - 1]) begins.push(k);
    const block = p.member[k];
    if (of.has(block)) of.get(block).push(begins.length - 1); else of.set(block, [begins.length - 1]);
  }
  begins.push(p.part.length);
  return { begins, of };
}

// The blocks that meet a block in a collective or a transfer, without itself.
function partners(p, block) {
  p.partOf ||= partOf(p);
  const out = new Set();
  for (const part of p.partOf.of.get(block) || []) {
    for (let k = p.partOf.begins[part]; k < p.partOf.begins[part + 1]; k++) out.add(p.member[k]);
  }
  out.delete(block);
  return [...out];
}

// The first place in [from, to) whose value is more than x.
function above(column, x, from, to) {
  while (from < to) {
    const middle = (from + to) >> 1;
    if (column[middle] > x) to = middle; else from = middle + 1;
  }
  return from;
}

function seconds(s) {
  const size = Math.abs(s);
  const [scale, unit] = size >= 1 ? [1, "s"] : size >= 1e-3 ? [1e3, "ms"] : size >= 1e-6 ? [1e6, "µs"] : [1e9, "ns"];
  return s === 0 ? "0 s" : `${Number((s * scale).toPrecision(5))} ${unit}`;
}

const startOf = (p, i) => p.start[i] * p.tick;
const endOf = (p, i) => p.end[i] * p.tick;
