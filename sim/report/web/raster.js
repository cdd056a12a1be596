// Rectangles written straight into an image: a hundred thousand of them in the time of a few strokes.

const raster = { image: null, pixels: null, width: 0, height: 0, dots: 1 };

// A colour such as #1f7a58 as a number: red in the lowest byte, as images hold it.
function packed(colour) {
  const part = (k) => parseInt(colour.slice(1 + 2 * k, 3 + 2 * k), 16);
  return ((255 << 24) | (part(2) << 16) | (part(1) << 8) | part(0)) >>> 0;
}

function cleared(ctx, colour) {
  const { width, height } = ctx.canvas;
  if (raster.width !== width || raster.height !== height) {
    raster.image = ctx.createImageData(width, height);
    raster.pixels = new Uint32Array(raster.image.data.buffer);
    raster.width = width; raster.height = height;
  }
  raster.dots = width / scene.width;
  raster.pixels.fill(colour);
}

// A rectangle, in dots, cut off at the edges.
function plot(colour, x, y, to, bottom) {
  const { pixels, width, height } = raster;
  x = Math.max(x, 0); to = Math.min(to, width); y = Math.max(y, 0); bottom = Math.min(bottom, height);
  if (to <= x) return;
  for (let at = y * width, end = bottom * width; at < end; at += width) {
    if (to - x === 1) pixels[at + x] = colour; else pixels.fill(colour, at + x, at + to);
  }
}

// Seconds of each colour within one dot, drawn as bands as high as their shares.
class Bands {
  constructor(colours, y, h) {
    Object.assign(this, { colours, y, h, sizes: new Float64Array(colours.length), used: [], dot: -1, sum: 0 });
  }

  add(dot, colour, size) {
    if (dot !== this.dot) { this.flush(); this.dot = dot; }
    if (this.sizes[colour] === 0) this.used.push(colour);
    this.sizes[colour] += size;
    this.sum += size;
  }

  flush() {
    let seen = 0, from = this.y;
    if (this.used.length > 1) this.used.sort((a, b) => a - b);
    for (const colour of this.used) {
      seen += this.sizes[colour];
      const to = this.y + Math.round((this.h * seen) / this.sum);
      plot(this.colours[colour], this.dot, from, this.dot + 1, to);
      from = to;
      this.sizes[colour] = 0;
    }
    this.used.length = 0; this.sum = 0;
  }
}
