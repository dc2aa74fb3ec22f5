// Three ways to get pictures.  Each is a function (screen, signal) that resolves when the
// server has ended the stream, throws `Unable` where it cannot work, and paints until then.

import { Unable, address, askReason } from "./server.js";

const HEADER_BYTES = 32;
const CONFIGURATION = 2, REASON = 3; // kinds of payload
const PATIENCE = 4000; // ms that the server has to say why it has refused
const ACKNOWLEDGE = 40; // ms from one acknowledgement to the next, at least
const GOING_AWAY = 1001, CANNOT = 4406; // why the server closes a WebSocket

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

// Puts messages together that came in several pieces; null while some is missing.
function joiner() {
  let whole = null;
  let filled = 0;
  return (data) => {
    if (whole === null) {
      const length = HEADER_BYTES + new DataView(data).getUint32(12, true);
      if (data.byteLength >= length) return data;
      whole = new Uint8Array(length);
      filled = 0;
    }
    whole.set(new Uint8Array(data), filled);
    filled += data.byteLength;
    if (filled < whole.length) return null;
    const { buffer } = whole;
    whole = null;
    return buffer;
  };
}

// Tells the server which picture was shown last, or passed over: it sends no more than
// can be shown in time.
function acknowledger(socket) {
  let newest = 0;
  let timer = null;
  let sent = -Infinity;
  const send = () => {
    timer = null;
    sent = performance.now();
    if (socket.readyState === WebSocket.OPEN) socket.send(String(newest));
  };
  return (sequence) => {
    newest = sequence;
    const wait = sent + ACKNOWLEDGE - performance.now();
    if (timer === null && wait > 0) timer = setTimeout(send, wait);
    else if (timer === null) send();
  };
}

// `take` gets each message, and a function for a failure.  Whoever is done with a message
// calls its `done`; the screen does so with those that it gets.
function overWebSocket(path, signal, take) {
  return new Promise((resolve, reject) => {
    const socket = new WebSocket(address(path, location.protocol === "https:" ? "wss:" : "ws:"));
    let isOpen = false;
    socket.onopen = () => (isOpen = true);
    socket.binaryType = "arraybuffer";
    const fail = (error) => {
      reject(error);
      socket.close();
    };
    signal.addEventListener("abort", () => socket.close());
    const join = joiner();
    const acknowledge = acknowledger(socket);
    socket.onmessage = ({ data }) => {
      try {
        const message = signal.aborted ? null : join(data);
        if (message === null) return;
        const header = readHeader(message);
        take({ ...header, done: () => acknowledge(header.sequence) }, fail);
      } catch (error) {
        fail(error);
      }
    };
    socket.onclose = ({ code, reason }) => {
      if (code === CANNOT) reject(new Unable(reason));
      else if (code === GOING_AWAY || signal.aborted) resolve();
      else if (!isOpen) askReason(PATIENCE).then(reject, reject);
      else reject(new Error(`closed with ${code}`));
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
    screen.arrived(header);
    if (header.kind === REASON) return screen.explain(header);
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
  let count = 0;
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
      screen.arrived(header);
      if (header.kind === REASON) return screen.explain(header);
      if (header.kind === CONFIGURATION) return configure(header.payload, fail);
      if (decoder === null || (needsKey && !header.key)) return header.done();
      needsKey = false;
      const timestamp = (count += 1); // (a still picture comes again with its number)
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

function mjpeg(screen, signal) {
  let newest = null; // of those that came while one was decoded
  let busy = false;
  const paint = async () => {
    busy = true;
    while (newest !== null && !signal.aborted) {
      const header = newest;
      newest = null;
      const image = await createImageBitmap(new Blob([header.payload], { type: "image/jpeg" }));
      if (!signal.aborted) {
        screen.painter.image(image, image.width, image.height);
        screen.shown(header);
      }
      image.close();
    }
    busy = false;
  };
  return overWebSocket("stream.mjpg", signal, (header) => {
    screen.arrived(header);
    if (header.kind === REASON) return screen.explain(header);
    newest = header;
    if (!busy) paint().catch(() => (busy = false));
  });
}

export const WAYS = { h264, mjpeg, raw };
