// Painters put pixels, or a picture that the browser has decoded, on a canvas.

import { Unable, query } from "./server.js";

const VERTEX = `
attribute vec2 corner;
varying vec2 place;
uniform vec2 part;
void main() {
  place = vec2(corner.x + 1.0, 1.0 - corner.y) * 0.5 * part;
  gl_Position = vec4(corner, 0.0, 1.0);
}`;

// YUV is BT.709 of limited range, and its chroma lies on the left one of two columns.
const FRAGMENT = `
precision highp float;
varying vec2 place;
uniform sampler2D first, second, third;
uniform int order; // 0 RGB, 1 BGR, 2 planes of Y, U and V, 3 of Y and UV
uniform float halfPixel, chromaHeight;
void main() {
  vec4 color = texture2D(first, place);
  if (order == 1) color = color.bgra;
  if (order >= 2) {
    vec2 there = vec2(place.x + halfPixel, place.y * chromaHeight);
    vec4 u = texture2D(second, there);
    vec2 uv = vec2(u.r, order == 3 ? u.a : texture2D(third, there).r) - 128.0 / 255.0;
    float y = (color.r - 16.0 / 255.0) * 255.0 / 219.0;
    color.rgb = y + vec3(1.79274 * uv.y, -0.21325 * uv.x - 0.53291 * uv.y, 2.11240 * uv.x);
  }
  gl_FragColor = vec4(color.rgb, 1.0);
}`;

// gray8, rgb24, rgba, bgr24, bgra, yuv420p, nv12: bytes of a pixel, and the order
const FORMATS = [[1, 0], [3, 0], [4, 0], [3, 1], [4, 1], [1, 2], [1, 3]];

// Where the planes of YUV begin, and the size of those with chroma.
function planesOf(width, height, bytes) {
  const [across, down] = [width >> 1, (height + 1) >> 1];
  const luma = width * height;
  return {
    across, down,
    y: bytes.subarray(0, luma),
    u: bytes.subarray(luma, luma + across * down),
    v: bytes.subarray(luma + across * down),
    uv: bytes.subarray(luma),
  };
}

// The part of a side of the source that is the picture: encoders take even sizes only.  (A
// source of half the size for a slow link is the whole of such a picture.)
function used(size, sourceSize) {
  return sourceSize === size ? 1 : size / (size + (size % 2));
}

class GlPainter {
  constructor(canvas) {
    this.canvas = canvas;
    const options = { alpha: false, antialias: false, depth: false,
      preserveDrawingBuffer: true, powerPreference: "low-power" };
    const gl = (this.gl = canvas.getContext("webgl", options));
    if (!gl) throw new Unable("no WebGL");
    canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
    canvas.addEventListener("webglcontextrestored", () => this.prepare());
    this.prepare();
  }

  prepare() {
    const gl = this.gl;
    const program = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    gl.useProgram(program);
    gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer());
    gl.bufferData(gl.ARRAY_BUFFER, new Float32Array([-1, -1, 1, -1, -1, 1, 1, 1]), gl.STATIC_DRAW);
    const corner = gl.getAttribLocation(program, "corner");
    gl.enableVertexAttribArray(corner);
    gl.vertexAttribPointer(corner, 2, gl.FLOAT, false, 0, 0);
    gl.pixelStorei(gl.UNPACK_ALIGNMENT, 1);
    const place = (name) => gl.getUniformLocation(program, name);
    this.order = place("order");
    this.part = place("part");
    this.halfPixel = place("halfPixel");
    this.chromaHeight = place("chromaHeight");
    ["first", "second", "third"].forEach((name, unit) => {
      gl.activeTexture(gl.TEXTURE0 + unit);
      gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
      for (const side of [gl.TEXTURE_WRAP_S, gl.TEXTURE_WRAP_T])
        gl.texParameteri(gl.TEXTURE_2D, side, gl.CLAMP_TO_EDGE);
      for (const way of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER])
        gl.texParameteri(gl.TEXTURE_2D, way, gl.LINEAR);
      gl.uniform1i(place(name), unit);
      this.plane(unit, gl.LUMINANCE, 1, 1, new Uint8Array(1));
    });
  }

  plane(unit, layout, width, height, bytes) {
    const gl = this.gl;
    gl.activeTexture(gl.TEXTURE0 + unit);
    gl.texImage2D(gl.TEXTURE_2D, 0, layout, width, height, 0, layout, gl.UNSIGNED_BYTE, bytes);
    gl.activeTexture(gl.TEXTURE0);
  }

  pixels({ width, height, format }, bytes) {
    const gl = this.gl;
    const [channels, order] = FORMATS[format];
    if (order >= 2) this.chroma(width, height, order, planesOf(width, height, bytes));
    const layout = { 1: gl.LUMINANCE, 3: gl.RGB, 4: gl.RGBA }[channels];
    this.plane(0, layout, width, height, bytes.subarray(0, width * height * channels));
    this.draw(width, height, order, 1, 1);
  }

  chroma(width, height, order, { across, down, u, v, uv }) {
    const gl = this.gl;
    if (order === 3) this.plane(1, gl.LUMINANCE_ALPHA, across, down, uv);
    else {
      this.plane(1, gl.LUMINANCE, across, down, u);
      this.plane(2, gl.LUMINANCE, across, down, v);
    }
    gl.uniform1f(this.halfPixel, 0.5 / width);
    gl.uniform1f(this.chromaHeight, height / 2 / down);
  }

  image(source, width, height, sourceWidth = width, sourceHeight = height) {
    const gl = this.gl;
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, gl.RGBA, gl.UNSIGNED_BYTE, source);
    this.draw(width, height, 0, used(width, sourceWidth), used(height, sourceHeight));
  }

  draw(width, height, order, partX, partY) {
    const { gl, canvas } = this;
    if (canvas.width !== width || canvas.height !== height)
      Object.assign(canvas, { width, height });
    gl.viewport(0, 0, width, height);
    gl.uniform1i(this.order, order);
    gl.uniform2f(this.part, partX, partY);
    gl.drawArrays(gl.TRIANGLE_STRIP, 0, 4);
  }
}

class FlatPainter { // where there is no WebGL, or only a slow one
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
  }

  fit(width, height) {
    if (this.canvas.width !== width || this.canvas.height !== height)
      Object.assign(this.canvas, { width, height });
  }

  pixels({ width, height, format }, bytes) {
    this.fit(width, height);
    const [channels, order] = FORMATS[format];
    const image = this.context.createImageData(width, height);
    if (order >= 2) this.fromPlanes(image.data, width, height, order, bytes);
    else this.fromPixels(image.data, channels, order, bytes);
    this.context.putImageData(image, 0, 0);
  }

  fromPixels(to, channels, order, bytes) {
    const [red, green, blue] = channels === 1 ? [0, 0, 0] : order ? [2, 1, 0] : [0, 1, 2];
    for (let from = 0, at = 0; at < to.length; from += channels, at += 4) {
      to[at] = bytes[from + red];
      to[at + 1] = bytes[from + green];
      to[at + 2] = bytes[from + blue];
      to[at + 3] = 255;
    }
  }

  fromPlanes(to, width, height, order, bytes) {
    const { across, y, u, v, uv } = planesOf(width, height, bytes);
    for (let row = 0, at = 0; row < height; row += 1)
      for (let column = 0; column < width; column += 1, at += 4) {
        const there = (row >> 1) * across + (column >> 1);
        const light = (y[at >> 2] - 16) * 255 / 219;
        const blue = (order === 3 ? uv[2 * there] : u[there]) - 128;
        const red = (order === 3 ? uv[2 * there + 1] : v[there]) - 128;
        to[at] = light + 1.79274 * red;
        to[at + 1] = light - 0.21325 * blue - 0.53291 * red;
        to[at + 2] = light + 2.1124 * blue;
        to[at + 3] = 255;
      }
  }

  image(source, width, height, sourceWidth = width, sourceHeight = height) {
    this.fit(width, height);
    const right = sourceWidth * used(width, sourceWidth);
    const bottom = sourceHeight * used(height, sourceHeight);
    this.context.drawImage(source, 0, 0, right, bottom, 0, 0, width, height);
  }
}

// Where WebGL is drawn by the processor, a 2D canvas is several times as fast.
const BY_PROCESSOR = /SwiftShader|llvmpipe|softpipe|Basic Render/i;

function hasFastGl() {
  const options = { failIfMajorPerformanceCaveat: true };
  const gl = document.createElement("canvas").getContext("webgl", options);
  if (!gl) return false;
  // (Firefox names the renderer without the extension, and warns if that is used)
  const isMasked = gl.getParameter(gl.RENDERER) === "WebKit WebGL";
  const names = isMasked && gl.getExtension("WEBGL_debug_renderer_info");
  const drawer = gl.getParameter(names ? names.UNMASKED_RENDERER_WEBGL : gl.RENDERER);
  gl.getExtension("WEBGL_lose_context")?.loseContext();
  return !BY_PROCESSOR.test(drawer);
}

// `?painter=webgl` and `?painter=2d` choose one; by default the faster one is used.
export function openPainter(canvas) {
  const wanted = query.get("painter") ?? (hasFastGl() ? "webgl" : "2d");
  if (wanted === "webgl") {
    try {
      return new GlPainter(canvas);
    } catch (error) {
      if (!(error instanceof Unable)) throw error;
    }
  }
  return new FlatPainter(canvas);
}
