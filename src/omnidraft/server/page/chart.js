// Line charts as SVG, whose colours are those of the style sheet.

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [300, 104];
const PLOT = { left: 38, right: 294, top: 8, bottom: 84 };

/** A chart in an element: `draw` shows values, oldest first, null for none; the newest, or `now`, is in the heading. */
export class Chart {
  constructor(parent, { title, format, top, least = 1, unit = "answers" }) {
    Object.assign(this, { title, format, top, least, unit });
    const figure = parent.appendChild(document.createElement("figure"));
    const caption = figure.appendChild(document.createElement("figcaption"));
    caption.append(title);
    this.now = caption.appendChild(document.createElement("strong"));
    this.svg = figure.appendChild(document.createElementNS(SVG, "svg"));
    this.svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.svg.setAttribute("role", "img");
    this.draw([]);
  }

  /** `marks` are places of values with a line down, `count` is how many of the unit there are. */
  draw(values, { marks = [], now = values.at(-1) ?? null, count = values.length } = {}) {
    const shown = values.map((value, i) => ({ value, i })).filter(({ value }) => value !== null);
    const last = shown.at(-1);
    this.now.textContent = now === null ? "–" : this.format(now);
    const said = `${count} ${this.unit}, the last ${last ? this.format(last.value) : "–"}`;
    const about = values.length ? said : `no ${this.unit} yet`;
    this.svg.setAttribute("aria-label", `${this.title}: ${about}`);
    const top = this.top ?? round(Math.max(this.least, ...shown.map(({ value }) => value)));
    const y = (value) => PLOT.bottom - (value / top) * (PLOT.bottom - PLOT.top);
    const step = (PLOT.right - PLOT.left) / Math.max(1, values.length - 1);
    const x = (i) => PLOT.right - (values.length - 1 - i) * step;
    this.svg.replaceChildren();
    for (const value of [0, top / 2, top]) {
      this.#add("line", { class: value ? "grid" : "axis", x1: PLOT.left, x2: PLOT.right, y1: y(value), y2: y(value) });
      this.#label(this.format(value), { x: PLOT.left - 5, y: y(value) + 3.5, "text-anchor": "end" });
    }
    const first = values.length > 2 ? `${count - 1} ${this.unit} ago` : "";
    this.#label(first, { x: PLOT.left, y: HEIGHT - 6 });
    this.#label(values.length ? "now" : `no ${this.unit} yet`, { x: PLOT.right, y: HEIGHT - 6, "text-anchor": "end" });
    for (const at of marks.map(x)) this.#add("line", { class: "mark", x1: at, x2: at, y1: PLOT.top, y2: PLOT.bottom });
    if (!last) return;
    const points = shown.map(({ value, i }) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`);
    this.#add("polyline", { class: "line", points: points.join(" ") });
    this.#add("circle", { class: "last", cx: x(last.i), cy: y(last.value), r: 2.5 });
  }

  #add(name, attributes) {
    const element = this.svg.appendChild(document.createElementNS(SVG, name));
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  }

  #label(text, attributes) {
    this.#add("text", attributes).textContent = text;
  }
}

/** The next number of 1, 2, 4, 5, 10, 20 and so on that is not below a value. */
function round(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return unit * [1, 2, 4, 5, 10].find((step) => step * unit >= value * 0.999);
}
