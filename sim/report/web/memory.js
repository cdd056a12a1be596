// The memory strip under the timeline: one curve per rank, or per panel the rank that holds most.

const GIB = 2 ** 30;

function kept() {
  const out = [];
  scene.panels.forEach((p, k) => {
    const peaks = p.memory_ranks.map((rank, r) => {
      let most = 0;
      for (let i = p.memory_from[r]; i < p.memory_from[r + 1]; i++) most = Math.max(most, p.memory[i]);
      return { p, rank, r, most, colour: legible(meta.lines[k % meta.lines.length]) };
    });
    if (!peaks.length) return;
    const top = peaks.reduce((a, b) => (b.most > a.most ? b : a));
    if (scene.panels.length === 1) peaks.forEach((one) => { if (one !== top) out.push({ ...one, thin: true }); });
    out.push(top);
  });
  return out;
}

function memory() {
  const canvas = byId("held");
  if (!scene.curves) scene.curves = kept();
  canvas.hidden = !scene.curves.length;
  if (canvas.hidden) return;
  const height = 110, ctx = sized(canvas, scene.width, height);
  const rank = scene.over && scene.over.row ? scene.over.row.rank : null;
  const capacity = Math.max(0, ...scene.panels.map((p) => p.capacity || 0));
  const most = Math.max(...scene.curves.map((c) => c.most));
  const top = (capacity && capacity < most * 1.6 ? Math.max(capacity, most) : most) * 1.08 || 1;
  const yOf = (b) => height - 6 - (b / top) * (height - 14);
  ctx.fillStyle = ink.paper;
  ctx.fillRect(0, 0, scene.width, height);
  ctx.save();
  ctx.beginPath(); ctx.rect(scene.gutter, 0, scene.width - scene.gutter, height); ctx.clip();
  for (const c of scene.curves) curve(ctx, c, yOf, rank === c.rank && c.thin);
  if (capacity && capacity <= top) {
    ctx.strokeStyle = ink.ink; ctx.lineWidth = 1; ctx.setLineDash([5, 4]);
    ctx.beginPath(); ctx.moveTo(scene.gutter, yOf(capacity)); ctx.lineTo(scene.width, yOf(capacity)); ctx.stroke();
    ctx.setLineDash([]);
  }
  ctx.restore();
  if (capacity && capacity <= top) {
    ctx.font = "11px system-ui, sans-serif"; ctx.fillStyle = ink.soft; ctx.textAlign = "right"; ctx.textBaseline = "top";
    ctx.fillText(`a GPU holds ${Number((capacity / GIB).toPrecision(3))} GiB; curves are with context and NCCL`, scene.width - 8, yOf(capacity) + 3);
  }
  scale(ctx, top, yOf, height);
}

function curve(ctx, c, yOf, lit) {
  const { p, r } = c, to = p.memory_from[r + 1];
  let i = Math.max(above(p.memory_at, scene.from / p.tick, p.memory_from[r], to) - 1, p.memory_from[r]);
  ctx.beginPath();
  let y = yOf(p.memory[i]), dot = -1, high = y, low = y;
  ctx.moveTo(Math.max(xOf(p.memory_at[i] * p.tick), scene.gutter), y);
  for (i++; i < to; i++) {
    const x = Math.round(xOf(p.memory_at[i] * p.tick) * 2) / 2;
    if (x !== dot && dot >= 0) { ctx.lineTo(dot, high); ctx.lineTo(dot, low); ctx.lineTo(dot, y); high = low = y; }
    if (x !== dot) { ctx.lineTo(x, y); dot = x; high = low = y; }
    y = yOf(p.memory[i]);
    high = Math.min(high, y); low = Math.max(low, y);
    if (x > scene.width) break;
  }
  if (dot >= 0) { ctx.lineTo(dot, high); ctx.lineTo(dot, low); ctx.lineTo(dot, y); }
  ctx.strokeStyle = c.colour;
  ctx.globalAlpha = c.thin && !lit ? Math.max(0.05, Math.min(0.3, 3 / scene.curves.length)) : 1;
  ctx.lineWidth = c.thin && !lit ? 1 : 1.6;
  ctx.stroke();
  ctx.globalAlpha = 1;
}

function scale(ctx, top, yOf, height) {
  ctx.fillStyle = ink.paper;
  ctx.fillRect(0, 0, scene.gutter - 1, height);
  ctx.fillStyle = ink.line;
  ctx.fillRect(scene.gutter - 1, 0, 1, height);
  ctx.font = "11px system-ui, sans-serif";
  ctx.textBaseline = "middle";
  ctx.fillStyle = ink.ink; ctx.textAlign = "left";
  ctx.font = "600 12px system-ui, sans-serif";
  ctx.fillText("memory", 6, 14);
  ctx.font = "11px system-ui, sans-serif";
  ctx.fillStyle = ink.soft; ctx.textAlign = "right";
  const unit = top > 3 * GIB ? [GIB, "GiB"] : top > 3 * 2 ** 20 ? [2 ** 20, "MiB"] : [1024, "KiB"];
  const power = 10 ** Math.floor(Math.log10(top / unit[0] / 4.5)), step = [1, 2, 5, 10].map((k) => k * power).find((k) => k * 4.5 >= top / unit[0]);
  for (let k = 0; k * step * unit[0] <= top; k++) {
    const y = yOf(k * step * unit[0]);
    if (k) ctx.fillRect(scene.gutter - 4, y, 4, 1);
    if (y > 20 || scene.gutter > 100) ctx.fillText(k ? `${Number((k * step).toPrecision(3))} ${unit[1]}` : "0", scene.gutter - 7, Math.min(y, height - 7));
  }
}
