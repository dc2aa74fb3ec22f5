// The graph of the latency: the last 30 seconds, with an axis in milliseconds.
// Below its line are the parts, the darkest first: until a frame arrived, until it was
// decoded, and until it was shown.

const SPAN = 30000; // ms
const GAP = 1000; // ms without a frame, which no line bridges
const LEAST = 10; // ms that the axis shows at least

// Rounds up to 1, 2 or 5 times a power of ten.
export function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((digit) => digit * power).find((nice) => nice >= value);
}

export class Graph {
  constructor(canvas) {
    this.canvas = canvas;
    this.top = LEAST; // ms at the upper end of the axis
  }

  draw(history) {
    this.top = roundUp(history.reduce((most, [, each]) => Math.max(most, each), LEAST));
    const { canvas, top } = this;
    const scale = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    Object.assign(canvas, { width: width * scale, height: height * scale });
    const context = canvas.getContext("2d");
    const style = getComputedStyle(canvas);
    const color = (name) => style.getPropertyValue(name);
    context.scale(scale, scale);
    context.font = `11px ${style.fontFamily}`;
    const left = context.measureText(`${top} ms`).width + 6;
    const [above, below] = [6, height - 6];
    const now = performance.now();
    const x = (time) => left + (width - left) * (1 - (now - time) / SPAN);
    const y = (latency) => below - (below - above) * latency / top;
    this.axis(context, { left, width, y, line: color("--line"), text: color("--dim") });
    context.fillStyle = color("--accent");
    context.globalAlpha = 0.2; // (what lies below two lines is darker)
    for (const part of [1, 2, 3]) this.area(context, history, x, y, part);
    context.globalAlpha = 1;
    this.line(context, history, x, y, color("--accent"));
  }

  axis(context, { left, width, y, line, text }) {
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const [value, label] of [[this.top, `${this.top} ms`], [this.top / 2, ""], [0, "0"]]) {
      context.fillStyle = text;
      context.fillText(label, left - 6, y(value));
      context.fillStyle = line;
      context.fillRect(left, Math.round(y(value)), width - left, 1);
    }
  }

  area(context, history, x, y, part) {
    context.beginPath();
    let before = null;
    for (const frame of history) {
      const [time] = frame;
      if (before === null || time - before > GAP) {
        if (before !== null) context.lineTo(x(before), y(0));
        context.moveTo(x(time), y(0));
      }
      context.lineTo(x(time), y(frame[part]));
      before = time;
    }
    if (before !== null) context.lineTo(x(before), y(0));
    context.fill();
  }

  line(context, history, x, y, color) {
    context.beginPath();
    let before = -Infinity;
    for (const [time, latency] of history) {
      if (time - before > GAP) context.moveTo(x(time), y(latency));
      else context.lineTo(x(time), y(latency));
      before = time;
    }
    context.strokeStyle = color;
    context.lineWidth = 1.6;
    context.lineJoin = "round";
    context.stroke();
  }
}
