// What the numbers below the picture say.

// ms after a connection began or the page was hidden: frames skipped to catch up do not count
const SETTLING = 2000;
const HISTORY = 30000; // ms
const ANSWERS = 8; // of the server, which are compared

const NONE = "\u2013";

export class Numbers {
  constructor() {
    this.answers = []; // of the server, the last ones: { ahead, took } of `askStatus`
    this.total = 0;
    // Of each frame that counts: [ms since the page began, its age when it was shown, when it
    // was decoded, when it arrived]
    this.history = [];
    this.restart();
  }

  restart() { // another connection, perhaps another way: frames missed before do not count
    this.settle();
    this.answers = this.answers.slice(-1);
    this.dropped = 0;
    this.recent = []; // [time, latency] of all frames of the last two seconds
    this.arrived = []; // [time, bytes] of all messages of that time
  }

  settle() { // frames missed until the next one that is shown do not count
    this.last = null;
    this.settled = Infinity;
  }

  compare({ ahead, took }) {
    this.answers = [...this.answers, { ahead, took }].slice(-ANSWERS);
  }

  // ms that the server's clock is ahead of ours.  An answer is wrong by at most half of the
  // time that it took.
  get ahead() {
    return this.answers.reduce((best, one) => (one.took < best.took ? one : best)).ahead;
  }

  arrive(nbytes) {
    this.arrived.push([performance.now(), nbytes]);
  }

  show({ sequence, timestamp, arrived, decoded = arrived }) {
    if (sequence === this.last) return; // a still picture again, for newcomers
    const now = performance.now();
    const published = timestamp - this.ahead - performance.timeOrigin;
    const age = (time) => Math.max(0, time - published);
    this.recent.push([now, age(now)]);
    if (now > this.settled) {
      this.dropped += Math.max(0, sequence - this.last - 1);
      this.history.push([now, age(now), age(decoded), age(arrived)]);
    }
    if (this.last === null) this.settled = now + SETTLING;
    this.last = sequence;
    this.total += 1;
  }

  pass(sequence) { // a frame that cannot be shown was not dropped
    if (this.last !== null) this.last = sequence;
  }

  forget(now) {
    const drop = (list, age) => {
      while (list.length && list[0][0] < now - age) list.shift();
    };
    drop(this.history, HISTORY);
    drop(this.recent, 2000);
    drop(this.arrived, 2000);
  }

  text() {
    this.forget(performance.now());
    const { recent } = this;
    const middle = recent.map(([, latency]) => latency).sort((a, b) => a - b)[recent.length >> 1];
    const bytes = this.arrived.reduce((sum, [, nbytes]) => sum + nbytes, 0);
    const span = recent.length > 1 ? (recent.at(-1)[0] - recent[0][0]) / 1000 : 0;
    const rate = bytes * 8e-6 / 2;
    return {
      fps: span ? ((recent.length - 1) / span).toFixed(1) : NONE,
      latency: middle === undefined ? NONE : middle.toFixed(middle < 10 ? 1 : 0),
      dropped: String(this.dropped),
      rate: bytes ? rate.toFixed(rate < 1 ? 2 : rate < 10 ? 1 : 0) : NONE,
    };
  }
}
