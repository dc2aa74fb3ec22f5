// The ways to get pictures.  Each is a function (screen, signal) that paints until the
// server has ended the stream, and then resolves; it throws `Unable` if it cannot work.

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
    arrived: performance.now(),
    payload: new Uint8Array(data, HEADER_BYTES),
  };
}

// Joins messages that came in pieces; returns null while a piece is missing.
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

// Tells the server which picture was shown last: it sends no more than can be shown in
// time.
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

// Calls take(message, fail) for each message; fail(error) closes the socket and rejects
// the promise.  A message's done() acknowledges it: screen.shown and screen.explain call
// it, and a way calls it for a picture that it skips.
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

// Gives `paint` the newest picture: at once, and the next one when the display has taken
// this one.  A hidden page's display takes none: there one picture at most is painted and
// acknowledged, and the newest of the others waits until the page is seen again.
function painting(screen, signal, paint) {
  let newest = null;
  let isBusy = false;
  const drop = () => {
    newest?.frame?.close();
    if (newest !== null && document.hidden && !signal.aborted) screen.passed(newest);
    newest = null;
  };
  const run = async () => {
    isBusy = true;
    try {
      while (newest !== null) {
        const header = newest;
        newest = null;
        await paint(header);
        do await new Promise(requestAnimationFrame);
        while (document.hidden); // (Firefox draws hidden pages now and then)
      }
    } finally {
      isBusy = false;
    }
  };
  signal.addEventListener("abort", drop);
  return (header) => {
    drop();
    newest = header;
    if (signal.aborted) drop();
    else if (!isBusy) run();
  };
}

function raw(screen, signal) {
  const put = painting(screen, signal, (header) => {
    screen.painter.pixels(header, header.payload);
    screen.shown(header);
  });
  return overWebSocket("raw", signal, (header) => {
    screen.arrived(header);
    if (header.kind === REASON) return screen.explain(header);
    put(header);
  });
}

// What WebCodecs decodes: `usual` stands for all that the server may send, and `config`
// makes a decoder's settings from the configuration that was sent.
const H264 = {
  name: "H.264",
  path: "h264",
  usual: "avc1.42c01f",
  config(avcc) {
    const hex = [...avcc.subarray(1, 4)].map((byte) => byte.toString(16).padStart(2, "0"));
    return { codec: `avc1.${hex.join("")}`, description: avcc.slice() };
  },
};
const AV1 = {
  name: "AV1",
  path: "av1",
  usual: "av01.0.13M.08",
  config: () => ({ codec: AV1.usual }), // (key frames contain all else)
};

async function coded({ name, path, usual, config }, screen, signal) {
  if (!("VideoDecoder" in self)) throw new Unable("no WebCodecs");
  const waiting = new Map(); // timestamp for the decoder -> header of the frame
  let count = 0;
  let decoder = null;
  let failure = null;
  let needsKey = true;

  const put = painting(screen, signal, (header) => {
    const { frame, width, height } = header;
    const { visibleRect: rect } = frame;
    try {
      screen.painter.image(frame, width, height, rect.width, rect.height);
    } finally {
      frame.close();
    }
    screen.shown(header);
  });
  const output = (frame) => {
    const header = waiting.get(frame.timestamp);
    waiting.delete(frame.timestamp);
    if (header === undefined) frame.close();
    else put({ ...header, frame, decoded: performance.now() });
  };
  const shut = () => {
    if (decoder !== null && decoder.state !== "closed") decoder.close();
    waiting.clear();
  };
  const configure = (said, fail) => {
    shut();
    decoder = new VideoDecoder({
      output,
      error: (error) => fail((failure = new Unable(`${name}: ${error.message}`))),
    });
    decoder.configure({ ...config(said), optimizeForLatency: true });
    needsKey = true;
  };
  const supported = await VideoDecoder.isConfigSupported({ codec: usual });
  if (!supported.supported) throw new Unable(`no ${name} decoder`);
  try {
    await overWebSocket(path, signal, (header, fail) => {
      screen.arrived(header);
      if (header.kind === REASON) return screen.explain(header);
      if (header.kind === CONFIGURATION) return configure(header.payload, fail);
      if (decoder === null || (needsKey && !header.key)) return header.done();
      needsKey = false;
      const timestamp = (count += 1); // (a still picture comes again with the same number)
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
  const put = painting(screen, signal, async (header) => {
    const blob = new Blob([header.payload], { type: "image/jpeg" });
    const image = await createImageBitmap(blob).catch(() => null);
    if (image === null) return;
    header.decoded = performance.now();
    if (!signal.aborted) {
      screen.painter.image(image, image.width, image.height);
      screen.shown(header);
    }
    image.close();
  });
  return overWebSocket("stream.mjpg", signal, (header) => {
    screen.arrived(header);
    if (header.kind === REASON) return screen.explain(header);
    put(header);
  });
}

export const WAYS = {
  h264: (screen, signal) => coded(H264, screen, signal),
  av1: (screen, signal) => coded(AV1, screen, signal),
  mjpeg,
  raw,
};
