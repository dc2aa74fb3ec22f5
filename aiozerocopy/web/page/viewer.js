// The live viewer: asks the server what it offers, takes the best way that this browser
// can take too, falls back to the next one when that fails, and reconnects.

const PREFERENCE = ["h264", "mjpeg", "raw"];
const NAMES = { auto: "Auto", h264: "H.264", mjpeg: "JPEG", raw: "Raw" };
const FIRST_FRAME = 5000; // ms that a way of transport has to show something
const SETTLING = 1000; // ms after the first frame, when skipped ones do not count yet
const STATUS_EVERY = 3000;
const STATUS_PATIENCE = 4000;
const BACKOFF = [250, 500, 1000, 2000, 4000];

const $ = (id) => document.getElementById(id);
const query = new URLSearchParams(location.search);
const token = query.get("token");
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

function address(path, scheme = location.protocol) {
  const url = new URL(path, location.href);
  url.protocol = scheme;
  url.search = url.hash = "";
  if (token !== null) url.searchParams.set("token", token);
  return url;
}

class Refusal extends Error {} // trying again later would not help
class Unable extends Error {} // this way does not work here, another may

// ---- painting ------------------------------------------------------------------------

const VERTEX = `
attribute vec2 corner;
varying vec2 place;
uniform vec2 part;
void main() {
  place = vec2(corner.x + 1.0, 1.0 - corner.y) * 0.5 * part;
  gl_Position = vec4(corner, 0.0, 1.0);
}`;
const FRAGMENT = `
precision mediump float;
varying vec2 place;
uniform sampler2D picture;
uniform bool swapped;
void main() {
  vec4 color = texture2D(picture, place);
  gl_FragColor = vec4(swapped ? color.bgr : color.rgb, 1.0);
}`;

// gray8, rgb24, rgba, bgr24, bgra: bytes a pixel, and whether red and blue are swapped
const FORMATS = [[1, false], [3, false], [4, false], [3, true], [4, true]];

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
    gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
    for (const name of [gl.TEXTURE_WRAP_S, gl.TEXTURE_WRAP_T])
      gl.texParameteri(gl.TEXTURE_2D, name, gl.CLAMP_TO_EDGE);
    for (const name of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER])
      gl.texParameteri(gl.TEXTURE_2D, name, gl.LINEAR);
    gl.pixelStorei(gl.UNPACK_ALIGNMENT, 1);
    this.swapped = gl.getUniformLocation(program, "swapped");
    this.part = gl.getUniformLocation(program, "part");
  }

  pixels({ width, height, format }, bytes) {
    const gl = this.gl;
    const [channels, swapped] = FORMATS[format];
    const layout = { 1: gl.LUMINANCE, 3: gl.RGB, 4: gl.RGBA }[channels];
    gl.texImage2D(gl.TEXTURE_2D, 0, layout, width, height, 0, layout, gl.UNSIGNED_BYTE, bytes);
    this.draw(width, height, swapped, 1, 1);
  }

  // The source may be larger than the picture: H.264 knows no odd sizes.
  image(source, width, height, sourceWidth = width, sourceHeight = height) {
    const gl = this.gl;
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, gl.RGBA, gl.UNSIGNED_BYTE, source);
    this.draw(width, height, false, width / sourceWidth, height / sourceHeight);
  }

  draw(width, height, swapped, partX, partY) {
    const { gl, canvas } = this;
    if (canvas.width !== width || canvas.height !== height)
      Object.assign(canvas, { width, height });
    gl.viewport(0, 0, width, height);
    gl.uniform1i(this.swapped, swapped ? 1 : 0);
    gl.uniform2f(this.part, partX, partY);
    gl.drawArrays(gl.TRIANGLE_STRIP, 0, 4);
  }
}

class FlatPainter { // where there is no WebGL
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
    const [channels, swapped] = FORMATS[format];
    const image = this.context.createImageData(width, height);
    const [red, green, blue] = channels === 1 ? [0, 0, 0] : swapped ? [2, 1, 0] : [0, 1, 2];
    for (let from = 0, to = 0; to < image.data.length; from += channels, to += 4) {
      image.data[to] = bytes[from + red];
      image.data[to + 1] = bytes[from + green];
      image.data[to + 2] = bytes[from + blue];
      image.data[to + 3] = 255;
    }
    this.context.putImageData(image, 0, 0);
  }

  image(source, width, height) {
    this.fit(width, height);
    this.context.drawImage(source, 0, 0);
  }
}

function openPainter(canvas) {
  if (query.get("painter") !== "2d") {
    try {
      return new GlPainter(canvas);
    } catch (error) {
      if (!(error instanceof Unable)) throw error;
    }
  }
  return new FlatPainter(canvas);
}

// ---- what the numbers say ------------------------------------------------------------

class Numbers {
  constructor() {
    this.offset = 0; // ms that the server's clock is ahead of ours
    this.total = 0;
    this.dropped = 0;
    this.history = []; // [ms since the page began, latency] of each frame shown
    this.restart();
  }

  restart() { // gaps between two connections are no drops
    this.last = null;
    this.settled = Infinity; // what is skipped to catch up at the start is none either
    this.arrived = []; // [time, bytes] of the last second
  }

  arrive(nbytes) {
    this.arrived.push([performance.now(), nbytes]);
  }

  show(sequence, timestamp) {
    const now = performance.now();
    if (now > this.settled) this.dropped += Math.max(0, sequence - this.last - 1);
    if (this.last === null) this.settled = now + SETTLING;
    this.last = sequence;
    this.total += 1;
    const latency = performance.timeOrigin + now + this.offset - timestamp;
    this.history.push([now, Math.max(0, latency)]);
  }

  text() {
    const now = performance.now();
    while (this.history.length && this.history[0][0] < now - 30000) this.history.shift();
    while (this.arrived.length && this.arrived[0][0] < now - 2000) this.arrived.shift();
    const shown = this.history.filter(([time]) => time > now - 2000);
    const middle = shown.map(([, latency]) => latency).sort((a, b) => a - b)[shown.length >> 1];
    const bytes = this.arrived.reduce((sum, [, nbytes]) => sum + nbytes, 0);
    const span = shown.length > 1 ? (shown.at(-1)[0] - shown[0][0]) / 1000 : 0;
    const rate = bytes * 8e-6 / 2;
    return {
      fps: span ? ((shown.length - 1) / span).toFixed(1) : "\u2013",
      latency: middle === undefined ? "\u2013" : middle.toFixed(middle < 10 ? 1 : 0),
      dropped: String(this.dropped),
      rate: bytes ? rate.toFixed(rate < 1 ? 2 : rate < 10 ? 1 : 0) : "\u2013",
      worst: this.history.length ? ` \u00b7 ${this.worst().toFixed(0)} ms at most` : "",
    };
  }

  worst() {
    return Math.max(...this.history.map(([, latency]) => latency));
  }

  draw(canvas) {
    const scale = devicePixelRatio || 1;
    const width = (canvas.width = canvas.clientWidth * scale);
    const height = (canvas.height = canvas.clientHeight * scale);
    const context = canvas.getContext("2d");
    const now = performance.now();
    const top = Math.max(20, this.worst()) * 1.15;
    const x = (time) => width * (1 - (now - time) / 30000);
    const y = (latency) => height - 1 - (height - 2) * latency / top;
    context.strokeStyle = "#242a32";
    context.strokeRect(0.5, 0.5, width - 1, height - 1);
    if (this.history.length < 2) return;
    context.beginPath();
    for (const [time, latency] of this.history) context.lineTo(x(time), y(latency));
    context.strokeStyle = "#5aa9ff";
    context.lineWidth = 1.4 * scale;
    context.lineJoin = "round";
    context.stroke();
    context.lineTo(x(this.history.at(-1)[0]), height);
    context.lineTo(x(this.history[0][0]), height);
    context.fillStyle = "#5aa9ff22";
    context.fill();
  }
}

// ---- three ways to get pictures ------------------------------------------------------
// Each is a function (screen, signal) that resolves when the stream ended, throws
// `Unable` where it cannot work, and paints until then.

const HEADER_BYTES = 32;

function readHeader(data) {
  const view = new DataView(data);
  return {
    kind: view.getUint8(1),
    format: view.getUint8(2),
    key: (view.getUint8(3) & 1) === 1,
    width: view.getUint32(4, true),
    height: view.getUint32(8, true),
    sequence: Number(view.getBigUint64(16, true)),
    timestamp: Number(view.getBigInt64(24, true)) / 1000,
    nbytes: data.byteLength,
    payload: new Uint8Array(data, HEADER_BYTES),
  };
}

function overWebSocket(path, signal, take) {
  return new Promise((resolve, reject) => {
    const socket = new WebSocket(address(path, location.protocol === "https:" ? "wss:" : "ws:"));
    socket.binaryType = "arraybuffer";
    const fail = (error) => {
      reject(error);
      socket.close();
    };
    signal.addEventListener("abort", () => socket.close());
    socket.onmessage = ({ data }) => {
      try {
        if (!signal.aborted) take(readHeader(data), fail);
      } catch (error) {
        fail(error);
      }
    };
    socket.onclose = ({ code, reason }) => {
      if (code === 4406) reject(new Unable(reason));
      resolve();
    };
    if (signal.aborted) socket.close();
  });
}

function raw(screen, signal) {
  let newest = null; // of those that came since the last repaint
  const paint = () => {
    if (newest === null || signal.aborted) return;
    const header = newest;
    newest = null;
    screen.painter.pixels(header, header.payload);
    screen.shown(header);
  };
  return overWebSocket("raw", signal, (header) => {
    screen.numbers.arrive(header.nbytes);
    if (newest === null) requestPaint(paint);
    newest = header;
  });
}

// A hidden page gets no animation frames, and must not keep what it was sent.
function requestPaint(paint) {
  if (document.hidden) setTimeout(paint, 0);
  else requestAnimationFrame(paint);
}

async function h264(screen, signal) {
  if (!("VideoDecoder" in self)) throw new Unable("no WebCodecs");
  const waiting = new Map(); // timestamp for the decoder -> header of the frame
  let decoder = null;
  let failure = null;
  let needsKey = true;

  let newest = null; // [frame, header]: decoded, and not painted yet
  const discard = () => {
    newest?.[0].close();
    newest = null;
  };
  const paint = () => {
    if (newest === null) return;
    const [frame, header] = newest;
    try {
      if (signal.aborted) return;
      const { visibleRect: rect } = frame;
      screen.painter.image(frame, header.width, header.height, rect.width, rect.height);
      screen.shown(header);
    } finally {
      discard();
    }
  };
  const output = (frame) => {
    const header = waiting.get(frame.timestamp);
    waiting.delete(frame.timestamp);
    if (header === undefined) return frame.close();
    if (newest === null) requestPaint(paint);
    discard(); // to paint is slower than to decode here: only the newest counts
    newest = [frame, header];
  };
  const shut = () => {
    if (decoder !== null && decoder.state !== "closed") decoder.close();
    waiting.clear();
    discard();
  };
  const configure = (avcc, fail) => {
    shut();
    const hex = [...avcc.subarray(1, 4)].map((byte) => byte.toString(16).padStart(2, "0"));
    decoder = new VideoDecoder({
      output,
      error: (error) => fail((failure = new Unable(`H.264: ${error.message}`))),
    });
    decoder.configure({
      codec: `avc1.${hex.join("")}`,
      description: avcc.slice(),
      optimizeForLatency: true,
    });
    needsKey = true;
  };
  const supported = await VideoDecoder.isConfigSupported({ codec: "avc1.42c01f" });
  if (!supported.supported) throw new Unable("no H.264 decoder");
  try {
    await overWebSocket("h264", signal, (header, fail) => {
      screen.numbers.arrive(header.nbytes);
      if (header.kind === 2) return configure(header.payload, fail);
      if (decoder === null || (needsKey && !header.key)) return;
      if (decoder.decodeQueueSize > 90) { // we are too slow: go on at the next key frame
        needsKey = true;
        return;
      }
      needsKey = false;
      const timestamp = header.sequence;
      waiting.set(timestamp, header);
      const type = header.key ? "key" : "delta";
      decoder.decode(new EncodedVideoChunk({ type, timestamp, data: header.payload }));
    });
  } catch (error) {
    throw failure ?? (error instanceof DOMException ? new Unable(error.message) : error);
  } finally {
    shut();
  }
}

async function mjpeg(screen, signal) {
  const response = await fetch(address("stream.mjpg"), { signal, cache: "no-store" });
  if (!response.ok || !response.body) throw new Unable(`JPEG: ${response.status}`);
  let newest = null;
  let busy = false;
  const paint = async () => {
    busy = true;
    while (newest !== null && !signal.aborted) {
      const header = newest;
      newest = null;
      const image = await createImageBitmap(new Blob([header.payload], { type: "image/jpeg" }));
      if (!signal.aborted) {
        screen.painter.image(image, image.width, image.height);
        screen.shown({ ...header, width: image.width, height: image.height });
      }
      image.close();
    }
    busy = false;
  };
  for await (const header of parts(response.body.getReader())) {
    screen.numbers.arrive(header.nbytes);
    newest = header;
    if (!busy) paint().catch(() => (busy = false));
  }
}

// The parts of a multipart stream, each with its headers and a Content-Length.
async function* parts(reader) {
  const decoder = new TextDecoder("latin1");
  let pieces = [];
  let size = 0;
  const more = async () => {
    const { done, value } = await reader.read();
    if (!done) {
      pieces.push(value);
      size += value.length;
    }
    return !done;
  };
  const join = () => {
    if (pieces.length > 1) {
      const whole = new Uint8Array(size);
      let at = 0;
      for (const piece of pieces) {
        whole.set(piece, at);
        at += piece.length;
      }
      pieces = [whole];
    }
    return pieces[0] ?? new Uint8Array();
  };
  const drop = (n) => {
    pieces = [join().subarray(n)];
    size -= n;
  };
  for (;;) {
    let text, end;
    while ((end = (text = decoder.decode(join().subarray(0, 1024))).indexOf("\r\n\r\n")) < 0)
      if (!(await more())) return;
    const field = (name) => new RegExp(`^${name}: *(-?\\d+)`, "mi").exec(text.slice(0, end))?.[1];
    const length = Number(field("Content-Length"));
    drop(end + 4);
    while (size < length + 2) if (!(await more())) return;
    yield {
      sequence: Number(field("X-Sequence")),
      timestamp: Number(field("X-Timestamp")) / 1000,
      payload: join().slice(0, length),
      nbytes: end + 4 + length + 2,
    };
    drop(length + 2);
  }
}

const WAYS = { h264, mjpeg, raw };

// ---- the page ------------------------------------------------------------------------

class Screen {
  constructor() {
    this.painter = openPainter($("picture"));
    this.numbers = new Numbers();
    this.mode = "";
    this.sequence = null; // of the frame that is shown
    this.wanted = query.get("mode") in WAYS ? query.get("mode") : "auto";
    this.failed = new Set(); // ways that did not work with this server
    this.connection = null; // an AbortController while there is one
    this.buttons();
    setInterval(() => this.refresh(), 500);
    this.run();
  }

  state(name, text, reason = "") {
    document.body.dataset.state = name;
    $("state").textContent = text;
    $("reason").textContent = reason;
  }

  // -- its life --

  async run() {
    for (let attempt = 0; ; attempt += 1) {
      const before = this.numbers.total;
      let reason = "The stream ended";
      try {
        await this.watch();
      } catch (error) {
        if (error instanceof Refusal) return this.state("refused", "Refused", error.message);
        if (!(error instanceof Unable)) reason = "The server cannot be reached";
        else if (this.wanted === "auto") continue; // another way, at once
        else reason = error.message;
      }
      if (this.switching) {
        this.switching = false;
        attempt = -1;
        continue;
      }
      if (this.numbers.total > before) attempt = 0;
      const pause = BACKOFF[Math.min(attempt, BACKOFF.length - 1)];
      this.state("waiting", "Reconnecting", `${reason}. Reconnecting\u2026`);
      await sleep(pause * (0.75 + Math.random() / 2));
    }
  }

  async watch() {
    const status = await this.askStatus();
    const mode = this.choose(status.modes);
    this.mode = mode;
    this.numbers.restart();
    this.published = status.sequence;
    this.showModes(status.modes);
    this.state("connecting", "Connecting", "Waiting for the first frame");
    const connection = (this.connection = new AbortController());
    const guard = this.guard(connection, mode);
    try {
      await WAYS[mode](this, connection.signal);
    } catch (error) {
      if (error instanceof Unable) this.failed.add(mode);
      throw connection.signal.reason instanceof Unable ? connection.signal.reason : error;
    } finally {
      clearInterval(guard);
      this.connection = null;
      if (!connection.signal.aborted) connection.abort();
    }
    if (connection.signal.reason instanceof Unable) throw connection.signal.reason;
  }

  choose(offered) {
    const usable = PREFERENCE.filter((mode) => offered.includes(mode) && !this.failed.has(mode));
    if (offered.includes(this.wanted)) return this.wanted;
    if (!usable.length) this.failed.clear(); // perhaps it was the network
    return usable[0] ?? offered[0] ?? "raw";
  }

  // A dead connection shows itself only to those who ask.
  guard(connection, mode) {
    const begin = performance.now();
    const before = this.numbers.total;
    let asking = false;
    return setInterval(async () => {
      if (asking) return;
      asking = true;
      try {
        const status = await this.askStatus();
        const late = performance.now() - begin > FIRST_FRAME;
        const moves = status.sequence > this.published + 1;
        if (late && moves && this.numbers.total === before && !document.hidden) {
          this.failed.add(mode);
          connection.abort(new Unable(`${NAMES[mode]} shows nothing`));
        }
      } catch {
        connection.abort();
      }
      asking = false;
    }, STATUS_EVERY);
  }

  async askStatus() {
    const begin = Date.now();
    const signal = AbortSignal.timeout(STATUS_PATIENCE);
    const response = await fetch(address("status"), { signal, cache: "no-store" });
    if (response.status === 401 || response.status === 403)
      throw new Refusal((await response.text()).trim());
    if (!response.ok) throw new Error(String(response.status));
    const status = await response.json();
    this.numbers.offset = status.now_us / 1000 - (begin + Date.now()) / 2;
    document.title = $("title").textContent = status.title;
    return status;
  }

  shown(header) {
    this.numbers.show(header.sequence, header.timestamp);
    this.sequence = header.sequence;
    this.size = `${header.width} \u00d7 ${header.height}`;
    if (document.body.dataset.state !== "live") this.state("live", "Live");
  }

  // -- what is around the picture --

  refresh() {
    for (const [id, text] of Object.entries(this.numbers.text())) $(id).textContent = text;
    $("size").textContent = this.size ?? "\u2013";
    $("mode").textContent = NAMES[this.mode] ?? "\u2013";
    this.numbers.draw($("graph"));
  }

  showModes(offered) {
    const buttons = ["auto", ...PREFERENCE].map((mode) => {
      const button = document.createElement("button");
      button.textContent = NAMES[mode];
      button.setAttribute("role", "radio");
      button.setAttribute("aria-checked", String(mode === this.wanted));
      button.disabled = mode !== "auto" && !offered.includes(mode);
      button.onclick = () => this.want(mode);
      return button;
    });
    $("modes").replaceChildren(...buttons);
  }

  want(mode) {
    this.wanted = mode;
    this.failed.clear();
    this.switching = this.connection !== null;
    this.connection?.abort();
  }

  buttons() {
    const save = () => $("picture").toBlob((blob) => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = `frame-${this.sequence ?? 0}.png`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
    const fill = () => {
      if (document.fullscreenElement) document.exitFullscreen();
      else $("stage").requestFullscreen?.().catch(() => {});
    };
    $("snapshot").onclick = save;
    $("fullscreen").onclick = fill;
    addEventListener("keydown", ({ key, ctrlKey, metaKey, altKey }) => {
      if (ctrlKey || metaKey || altKey) return;
      if (key === "f") fill();
      if (key === "s") save();
    });
  }
}

self.viewer = new Screen();
