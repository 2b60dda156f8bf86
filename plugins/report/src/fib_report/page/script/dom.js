// Making elements. Names and logs are untrusted and inserted as text only.

const MARKS = /[\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;

// Invisible characters and those that change the text direction are shown as code points.
const clean = (text) => String(text)
  .replace(/\r\n?/g, "\n")
  .replace(CONTROLS, (one) => (one < " " ? String.fromCharCode(0x2400 + one.charCodeAt(0)) : "\ufffd"))
  .replace(MARKS, (one) => `\u27e8${one.charCodeAt(0).toString(16)}\u27e9`);

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "g", "path", "line", "circle", "text", "polyline", "rect", "title"]);

const put = (node, children) => {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : clean(child));
  }
  return node;
};

// make("p", {class: "note", onclick: f}, "text", node, …)
const make = (tag, attributes = {}, ...children) => {
  const node = DRAWN.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : clean(value));
  }
  return put(node, children);
};

// Names may break after underscores, slashes and points; <bdi> isolates their text direction.
const breakable = (text) => {
  const parts = clean(text).split(/(?<=[_/.])/);
  const node = make("bdi");
  parts.slice(0, 60).forEach((part, index) => node.append(...(index ? [make("wbr"), part] : [part])));
  node.append(parts.slice(60).join(""));
  return node;
};

const clip = (text, width) => {
  text = clean(text);
  if (text.length <= width) return text;
  const tail = Math.floor((width - 1) / 2);
  return `${text.slice(0, width - 1 - tail)}…${tail ? text.slice(-tail) : ""}`;
};

const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const digits = (value) => String(Number(value.toPrecision(3)));

const duration = (ms) => {
  if (ms === null || ms === undefined) return "–";
  if (ms === 0) return "0";
  if (ms < 0.0009995) return `${digits(ms * 1e6)} ns`;
  if (ms < 0.9995) return `${digits(ms * 1e3)} µs`;
  return ms < 999.5 ? `${digits(ms)} ms` : `${Number((ms / 1e3).toPrecision(3)).toLocaleString("en")} s`;
};

const ratio = (value) => {
  if (value === null || value === undefined) return "–";
  if (value > 0 && value < 0.01) return `1/${Math.round(1 / value).toLocaleString("en")}×`;
  return value >= 100 ? `${Math.round(value).toLocaleString("en")}×` : `${digits(value)}×`;
};

// Half the width of a 95% interval, as a share of the figure.
const halfWidth = (value, ends) => (ends && value ? (ends[1] - ends[0]) / 2 / value : null);
const plusMinus = (value, ends) => {
  const share = halfWidth(value, ends);
  if (share === null) return "";
  return share < 1 ? ` ±${Number((share * 100).toPrecision(2))}%` : " ± over 100%";
};
const range = (ends, write) => (ends ? `${write(ends[0])} – ${write(ends[1])}` : "–");

// Bytes, operations and rates with a metric prefix.
const scaled = (value, unit) => {
  if (value === null || value === undefined) return "–";
  const step = value > 0 ? Math.min(Math.max(Math.floor(Math.log10(value) / 3), 0), 5) : 0;
  return `${digits(value / 1e3 ** step)} ${["", "k", "M", "G", "T", "P"][step]}${unit}`;
};
const limitShare = (share) => {
  if (share === null || share === undefined) return "–";
  return share < 0.0995 ? `${Number((share * 100).toPrecision(2))}%` : percent(share);
};

const percent = (share) => `${Math.round(share * 100)}%`;
const small = (value) => (value === null || value === undefined ? "–" : String(Number(value.toPrecision(2))));
const statusLabel = (status) => status.toLowerCase().replaceAll("_", " ");
const statusClass = (status) => `st-${status.toLowerCase().replaceAll("_", "-")}`;
