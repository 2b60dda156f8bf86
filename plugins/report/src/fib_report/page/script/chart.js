// Shared parts of all drawings: scales, grids, colours, legends. Drawings fit the available width.

const COLOURS = 8;
const colour = (index) => (index < COLOURS ? `c${index + 1}` : "c0");

const scale = (low, high, start, end, logarithmic) => (value) => {
  const kept = Math.min(Math.max(value, low), high);
  const share = logarithmic ? Math.log(kept / low) / Math.log(high / low) : (kept - low) / (high - low);
  return start + (Number.isFinite(share) ? share : 0.5) * (end - start);
};

const niceStep = (rough) => {
  const unit = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * unit).find((step) => step >= rough * 0.999);
};

// Ticks from the last one below all values to the first one above them.
const ticksAround = (low, high, factors) => {
  const ticks = [];
  for (let exponent = Math.floor(Math.log10(low)); exponent <= Math.ceil(Math.log10(high)); exponent++) {
    factors.forEach((factor) => ticks.push(factor * 10 ** exponent));
  }
  const first = ticks.findLastIndex((tick) => tick <= low * 1.0001);
  const last = ticks.findIndex((tick) => tick >= high * 0.9999);
  return ticks.slice(Math.max(first, 0), last < 0 ? undefined : last + 1);
};

const decades = (low, high) => {
  const found = [[1, 2, 5], [1, 3], [1]].map((factors) => ticksAround(low, high, factors));
  const ticks = found.find((one) => one.length <= 9) ?? found[2];
  const stride = Math.ceil(ticks.length / 9);
  return ticks.filter((_, index) => index % stride === 0);
};

// Positive quantities: logarithmic if they differ more than tenfold, otherwise from zero.
const quantityAxis = (values, start, end) => {
  const kept = values.filter((value) => value > 0 && Number.isFinite(value));
  const low = Math.min(...kept), high = Math.max(...kept);
  if (!kept.length) return { at: scale(0, 1, start, end), ticks: [0, 1], low: 0 };
  if (high / low > 10) {
    const ticks = decades(low, high);
    const [from, to] = [Math.min(low, ticks[0]), Math.max(high, ticks[ticks.length - 1])];
    return { at: scale(from, to, start, end, true), ticks, low: from };
  }
  const step = niceStep(high / 4);
  const ticks = Array.from({ length: Math.ceil((high / step) * 0.999) + 1 }, (_, index) => index * step);
  return { at: scale(0, ticks[ticks.length - 1], start, end), ticks, low: 0 };
};

// Ratios around 1: logarithmic, with a line at 1 and at powers of two.
const ratioAxis = (values, start, end) => {
  const kept = values.filter((value) => value > 0 && Number.isFinite(value));
  const low = Math.floor(Math.log2(Math.min(...kept, 0.5)));
  const high = Math.ceil(Math.log2(Math.max(...kept, 2)));
  const stride = Math.ceil((high - low) / 8);
  const ticks = [];
  for (let exponent = low; exponent <= high; exponent++) if (exponent % stride === 0) ticks.push(2 ** exponent);
  return { at: scale(2 ** low, 2 ** high, start, end, true), ticks, low: 2 ** low };
};

const line = (x1, y1, x2, y2, name) => make("line", { x1, y1, x2, y2, class: name });
const label = (x, y, text, anchor = "start", name = "tick") => make("text", { x, y, "text-anchor": anchor, class: name }, text);

const acrossGrid = (axis, left, right, write) => axis.ticks.map((tick) => [
  line(left, axis.at(tick), right, axis.at(tick), "grid"),
  label(left - 8, axis.at(tick) + 4, write(tick), "end"),
]);

const drawing = (width, height, description, ...parts) => make(
  "svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": description }, ...parts);

// A figure that is redrawn whenever its width changes.
const figure = (title, note, draw, ...around) => {
  const place = make("div", { class: "drawing" });
  const box = make("figure", {}, make("figcaption", {}, make("h3", {}, title), note && make("p", { class: "note" }, note)),
    around, place);
  let width = 0;
  const redraw = (force) => {
    const room = Math.floor(place.clientWidth);
    if (!room || (room === width && force !== true)) return;
    width = room;
    place.replaceChildren(...draw(Math.max(260, Math.min(room, 900))));
  };
  new ResizeObserver(redraw).observe(place);
  return { element: box, redraw: () => redraw(true) };
};

// entries: [{class, name, tip, key?}]; with `hidden`, each entry with a key is a switch.
const legend = (entries, hidden, changed) => make("ul", { class: "legend" }, entries.map((entry) => {
  const content = [make("span", { class: `swatch ${entry.class}` }), make("bdi", {}, entry.name)];
  if (!hidden || entry.key === undefined) return make("li", { "data-tip": entry.tip }, content);
  const flip = () => {
    if (!hidden.delete(entry.key)) hidden.add(entry.key);
    changed(entry.key);
  };
  const button = make("button", { type: "button", "aria-pressed": "true", onclick: flip }, content);
  button.series = entry.key; // a property, because attributes hold escaped text
  return make("li", { "data-tip": entry.tip }, button);
}));

const rowsOf = (lines) => lines.filter((text) => text).join("\n");
