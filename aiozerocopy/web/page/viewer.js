// The live viewer: asks the server what it offers, takes the best way that this browser
// can use, falls back to the next one when that fails, and reconnects.

import { Graph } from "./graph.js";
import { Numbers } from "./numbers.js";
import { openPainter } from "./painter.js";
import { Full, Refusal, Unable, askStatus, query } from "./server.js";
import { STATES, stateOf } from "./states.js";
import { WAYS } from "./ways.js";

const PREFERENCE = ["h264", "av1", "mjpeg", "raw"];
const NAMES = { auto: "Auto", h264: "H.264", av1: "AV1", mjpeg: "JPEG", raw: "Raw" };
const FIRST_FRAME = 5000; // ms that a way has to show something
const ASK_EVERY = 3000; // ms, while frames come
const ASK_SOON = 1000; // ms, while none come
const PATIENCE = 4000; // ms that the server has to answer
const GOODBYE = 250; // ms for the stream to end properly, after a request has failed
const BACKOFF = [250, 500, 1000, 2000, 4000];

const $ = (id) => document.getElementById(id);
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

class Screen {
  constructor() {
    this.painter = openPainter($("picture"));
    this.numbers = new Numbers();
    this.graph = new Graph($("graph"));
    this.mode = "";
    this.sequence = null; // of the frame that is shown
    this.wanted = query.get("mode") in WAYS ? query.get("mode") : "auto";
    this.offered = []; // ways of this server
    this.failed = new Set(); // those that did not work
    this.connection = null; // while there is one
    this.lastFrame = null; // when it was shown
    this.listen();
    setInterval(() => this.tick(), 250);
    setInterval(() => this.refresh(), 500);
    this.run();
  }

  // -- its life --

  async run() {
    for (let attempt = 0; ; attempt += 1) {
      const before = this.numbers.total;
      let failure = null;
      try {
        await this.watch();
      } catch (error) {
        failure = error;
      }
      if (this.switching) {
        this.switching = false;
        this.enter("connecting");
        attempt = -1;
        continue;
      }
      if (failure instanceof Refusal) return this.enter("refused", `It says: ${failure.message}.`);
      if (failure instanceof Unable && this.hasOther) continue; // at once
      if (failure === null) this.enter("ended");
      else if (failure instanceof Full) this.enter("full");
      else if (failure instanceof Unable) this.enter("unable", sentence(failure.message));
      else if (this.state !== "ended") this.enter("lost");
      if (this.numbers.total > before) attempt = 0;
      const pause = BACKOFF[Math.min(attempt, BACKOFF.length - 1)];
      await sleep(pause * (0.75 + Math.random() / 2));
    }
  }

  async watch() {
    const status = await this.ask();
    if (status.full) throw new Full();
    this.offered = status.modes;
    this.mode = this.choose();
    this.numbers.restart();
    this.offer();
    const now = performance.now();
    const cancel = new AbortController();
    this.connection = {
      cancel,
      begin: now,
      asked: now, // when the server was last asked
      answer: now, // when it last said anything
      frame: null, // when a frame was last shown
      newest: -1, // the last frame that was shown, or that cannot be
      reason: "", // why it cannot be
      first: status.sequence,
      published: status.sequence, // how many frames were published
    };
    this.tick();
    try {
      await WAYS[this.mode](this, cancel.signal);
      cancel.signal.throwIfAborted();
    } catch (error) {
      const cause = cancel.signal.reason ?? error;
      if (cause instanceof Unable) this.failed.add(this.mode);
      else if (this.connection.frame === null) this.failed.clear(); // as in `choose`
      throw cause;
    } finally {
      this.connection = null;
      cancel.abort();
    }
  }

  choose() {
    const { offered, wanted, failed } = this;
    const usable = PREFERENCE.filter((mode) => offered.includes(mode) && !failed.has(mode));
    if (offered.includes(wanted)) return wanted;
    if (!usable.length) failed.clear(); // perhaps it was the network
    return usable[0] ?? offered[0] ?? "raw";
  }

  // Would `choose` take another way if this one fails?
  get hasOther() {
    const { offered, wanted, failed, mode } = this;
    return !offered.includes(wanted) && offered.some((way) => way !== mode && !failed.has(way));
  }

  async ask() {
    const status = await askStatus(PATIENCE);
    this.numbers.compare(status);
    document.title = $("title").textContent = status.title;
    return status;
  }

  // -- what comes in --

  arrived({ nbytes }) {
    this.numbers.arrive(nbytes);
    this.connection.answer = performance.now();
  }

  shown(header) {
    const { sequence, width, height, done } = header;
    const { connection } = this;
    done();
    this.numbers.show(header);
    this.sequence = sequence;
    $("picture").hidden = false;
    this.size = `${width} \u00d7 ${height}`;
    this.lastFrame = connection.frame = performance.now();
    if (sequence > connection.newest) {
      connection.newest = sequence;
      connection.reason = "";
    }
    if (this.state !== "live") this.tick();
  }

  // A hidden page does not acknowledge the picture, so that the server sends few
  // pictures.
  passed({ sequence }) {
    this.connection.newest = sequence;
    this.lastFrame = this.connection.frame = performance.now();
  }

  explain({ sequence, payload, done }) {
    const text = new TextDecoder().decode(payload);
    done();
    this.numbers.pass(sequence);
    this.connection.newest = sequence;
    this.connection.reason = sentence(text);
    if (this.state !== "unshowable") this.tick();
  }

  // -- its state --

  tick() {
    const now = performance.now();
    const { connection } = this;
    if (connection !== null) {
      const state = stateOf(connection, now);
      this.enter(state, state === "unshowable" ? connection.reason : undefined);
      const isQuiet = now - (connection.frame ?? connection.begin) > ASK_SOON;
      if (now - connection.asked > (isQuiet ? ASK_SOON : ASK_EVERY)) this.check(connection);
    }
    const isOld = this.lastFrame !== null && this.state !== "live";
    $("age").textContent = isOld ? `Last frame ${ago(now - this.lastFrame)} ago` : "";
  }

  // Only by asking does the page notice a dead connection.
  async check(connection) {
    connection.asked = Infinity; // until it has answered
    try {
      const status = await this.ask();
      connection.asked = connection.answer = performance.now();
      connection.published = status.sequence;
      const isLate = connection.answer - connection.begin > FIRST_FRAME;
      const hasNothing = connection.frame === null && !connection.reason && !document.hidden;
      if (isLate && hasNothing && status.sequence > connection.first + 1 && this.hasOther)
        throw new Unable(`${NAMES[this.mode]} shows nothing`);
    } catch (error) {
      if (!(error instanceof Unable)) await sleep(GOODBYE);
      connection.cancel.abort(error);
    }
  }

  enter(state, explanation = STATES[state][2]) {
    const [word, headline] = STATES[state];
    const announcement = [headline || word, explanation].filter(Boolean).join(". ");
    if (announcement === $("announcement").textContent) return;
    this.state = document.body.dataset.state = state;
    $("state").textContent = word;
    $("headline").textContent = headline;
    $("reason").textContent = explanation;
    $("announcement").textContent = announcement;
  }

  // -- what is around the picture --

  refresh() {
    for (const [id, text] of Object.entries(this.numbers.text())) $(id).textContent = text;
    $("size").textContent = this.size ?? "\u2013";
    $("mode").textContent = NAMES[this.mode] ?? "\u2013";
    this.graph.draw(this.numbers.history);
  }

  offer() {
    for (const choice of choices()) {
      choice.checked = choice.value === this.wanted;
      choice.disabled = choice.value !== "auto" && !this.offered.includes(choice.value);
      if (choice.value === "av1") choice.parentElement.hidden = choice.disabled;
    }
  }

  want(mode) {
    this.wanted = mode;
    this.failed.clear();
    this.switching = this.connection !== null;
    this.connection?.cancel.abort();
  }

  listen() {
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
    for (const choice of choices()) choice.onchange = () => this.want(choice.value);
    document.addEventListener("visibilitychange", () => this.numbers.settle());
    $("snapshot").onclick = save;
    $("fullscreen").onclick = fill;
    addEventListener("keydown", ({ key, ctrlKey, metaKey, altKey }) => {
      if (ctrlKey || metaKey || altKey) return;
      if (key === "f") fill();
      if (key === "s") save();
    });
  }
}

function choices() {
  return document.querySelectorAll("#modes input");
}

function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

function ago(ms) {
  const seconds = Math.round(ms / 1000);
  return seconds < 120 ? `${seconds} s` : `${Math.round(seconds / 60)} min`;
}

self.viewer = new Screen();
