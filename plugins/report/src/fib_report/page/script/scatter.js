// Latency or speed-up of each solution of a definition, over an axis of its workloads.

const BY_WORKLOAD = "(workload)";
const middle = (values) => {
  const ordered = [...values].sort((a, b) => a - b);
  const half = Math.floor(ordered.length / 2);
  return ordered.length % 2 ? ordered[half] : (ordered[half - 1] + ordered[half]) / 2;
};

// The axes on which workloads differ, the most telling first.
const varyingAxes = (runs) => {
  const values = new Map();
  for (const run of runs) {
    for (const [name, value] of Object.entries(run.axes)) {
      if (!values.has(name)) values.set(name, new Set());
      values.get(name).add(value);
    }
  }
  return [...values].filter(([, found]) => found.size > 1).sort((a, b) => b[1].size - a[1].size).map(([name]) => name);
};

// Where each workload stands: by the value of an axis, or side by side.
const places = (runs, axis, left, right) => {
  if (axis === BY_WORKLOAD) {
    const ordered = [...new Map(runs.map((run) => [run.uuid, run])).values()].sort((a, b) => a.order - b.order);
    const step = (right - left) / ordered.length;
    const position = new Map(ordered.map((run, index) => [run.uuid, left + (index + 0.5) * step]));
    const ticks = ordered.map((run) => [position.get(run.uuid), run.label]);
    return { of: (run) => position.get(run.uuid), ticks, slanted: true };
  }
  const kept = runs.filter((run) => axis in run.axes);
  const values = [...new Set(kept.map((run) => run.axes[axis]))].sort((a, b) => a - b);
  const [low, high] = [values[0], values[values.length - 1]];
  const logarithmic = low > 0 && high / low > 10;
  const at = scale(low, high, left + 12, right - 12, logarithmic);
  const ticks = values.map((value) => [at(value), value.toLocaleString("en")]);
  return { of: (run) => (axis in run.axes ? at(run.axes[axis]) : null), ticks, slanted: false };
};

const axisTicks = (ticks, slanted, bottom) => {
  let last = -Infinity;
  return ticks.map(([x, text]) => {
    const room = slanted ? 15 : 8 + 3.5 * text.length;
    if (x - room < last) return null;
    last = slanted ? x : x + room;
    if (!slanted) return label(x, bottom + 17, text, "middle");
    return make("text", { class: "tick", "text-anchor": "end", "data-tip": text,
      transform: `translate(${x + 4} ${bottom + 14}) rotate(-38)` }, clip(text, 16));
  });
};

const runTip = (run) => rowsOf([
  run.solution, run.label,
  run.passed ? `${duration(run.latency)}${plusMinus(run.latency, run.interval)} · ${ratio(run.speedup)}${plusMinus(run.speedup, run.speedupInterval)}`
    : statusLabel(run.status),
  run.interval ? `95 % interval: ${range(run.interval, duration)}` : "",
  run.samples ? `middle half of ${run.samples} samples: ${duration(run.low)} – ${duration(run.high)}` : "",
  run.disputed ? "disputed: not ranked" : "",
  run.replayable ? "replayable: its result may come from memory" : "",
  run.loose ? "loose tolerance: not right by dtype" : "",
  run.dropped ? `${run.dropped} samples dropped` : "",
  run.passed ? [run.timed, run.rule, run.referenceTimed && `reference timed ${run.referenceTimed}`].filter(Boolean).join(" · ") : "",
  "click for details",
]);

const seriesParts = (runs, place, axis, value, spread, name, open) => {
  const points = runs.filter((run) => value(run) && place.of(run) !== null)
    .map((run) => ({ run, x: place.of(run), y: axis.at(value(run)) }));
  const columns = [...grouped(points, (point) => point.x)].sort((a, b) => a[0] - b[0]);
  const path = columns.map(([x, group]) => `${x.toFixed(1)},${middle(group.map((one) => one.y)).toFixed(1)}`).join(" ");
  const whiskers = points.map(({ run, x }) => {
    const ends = spread(run);
    if (!ends) return null;
    const [low, high] = [axis.at(ends[0]), axis.at(ends[1])];
    return make("path", { d: `M${x} ${low}V${high}M${x - 4} ${low}h8M${x - 4} ${high}h8`, class: `whisker ${name}` });
  });
  const dots = points.map(({ run, x, y }) => make("circle", { cx: x, cy: y, r: 3.5, class: `dot ${name}`,
    "data-tip": runTip(run), "data-run": run.index, onclick: () => open(run) }));
  return [make("polyline", { points: path, class: `curve ${name}` }), whiskers, dots];
};

const failureParts = (runs, place, y, names, open) => runs
  .filter((run) => !run.passed && place.of(run) !== null)
  .map((run) => {
    const order = [...names.keys()];
    const x = place.of(run) + (order.indexOf(run.solution) - (order.length - 1) / 2) * Math.min(3, 24 / order.length);
    return make("path", { d: `M${x - 3} ${y - 3}l6 6m0 -6l-6 6`, class: `cross ${names.get(run.solution)}`,
      "data-tip": runTip(run), "data-run": run.index, onclick: () => open(run) });
  });

const referenceParts = (runs, place, axis, speedup, left, right) => {
  if (speedup) return line(left, axis.at(1), right, axis.at(1), "reference");
  const known = runs.filter((run) => run.reference && place.of(run) !== null);
  const columns = [...grouped(known, (run) => place.of(run))].sort((a, b) => a[0] - b[0]);
  const points = columns.map(([x, group]) => `${x},${axis.at(middle(group.map((run) => run.reference))).toFixed(1)}`);
  return make("polyline", { points: points.join(" "), class: "reference" });
};

const drawScatter = (runs, names, hidden, options, width, open) => {
  const [left, right, top, bottom] = [58, width - 12, 12, 262];
  const speedup = options.y === "speedup";
  const shown = runs.filter((run) => !hidden.has(run.solution));
  const place = places(runs, options.x, left, right);
  const value = (run) => (speedup ? run.speedup : run.latency);
  const spread = (run) => (speedup ? run.speedupInterval : run.interval);
  const values = shown.flatMap((run) => [...(speedup ? [run.speedup] : [run.latency, run.reference]), ...(spread(run) ?? [])]);
  const axis = (speedup ? ratioAxis : quantityAxis)(values.filter(Boolean), bottom, top);
  const failed = bottom + 16;
  const below = failed + (place.slanted ? 76 : 40);
  const series = [...names].filter(([name]) => !hidden.has(name)).reverse(); // the best is drawn last, on top
  const byName = grouped(shown, (run) => run.solution);
  return drawing(width, below, `${speedup ? "Speed-up" : "Latency"} of each solution over ${options.x}`,
    acrossGrid(axis, left, right, speedup ? ratio : duration),
    line(left, bottom, right, bottom, "axis"), axisTicks(place.ticks, place.slanted, failed),
    shown.some((run) => !run.passed) && label(left - 8, failed + 4, "failed", "end"),
    referenceParts(shown, place, axis, speedup, left, right),
    failureParts(shown, place, failed, names, open),
    series.map(([name, style]) => seriesParts(byName.get(name) ?? [], place, axis, value, spread, style, open)),
    label(right, below - 4, options.x === BY_WORKLOAD ? "workloads, smaller ones first" : options.x, "end"));
};

const picker = (name, entries, changed) => {
  const list = make("select", { "aria-label": name, onchange: () => changed(list.value) },
    entries.map(([value, text]) => make("option", { value }, clip(text, 40))));
  entries.forEach(([value], index) => { list.options[index].value = value; });
  return make("label", {}, `${name} `, list);
};

// runs: of one definition on one device. scores: its solutions, the best first.
const scatterFigure = (runs, scores, open) => {
  const names = new Map(scores.map((score, index) => [score.solution, colour(index)]));
  const axes = varyingAxes(runs);
  const options = { x: axes[0] ?? BY_WORKLOAD, y: "latency" };
  const hidden = new Set();
  const draw = (width) => [drawScatter(runs, names, hidden, options, width, open)];
  const pick = (field) => (value) => { options[field] = value; made.redraw(); };
  const controls = make("p", { class: "controls" },
    picker("Show", [["latency", "latency"], ["speedup", "speed-up"]], pick("y")),
    picker("over", [...axes.map((axis) => [axis, axis]), [BY_WORKLOAD, "each workload"]], pick("x")));
  const made = figure("Latency and speed-up", scatterNote(runs), draw, controls);
  const shorts = new Map(runs.map((run) => [run.solution, run.short]));
  const entries = scores.slice(0, COLOURS).map((score, index) => ({
    class: colour(index), name: shorts.get(score.solution), key: score.solution,
    tip: rowsOf([score.solution, `by ${score.author}`, `${score.passed} of ${score.workloads} passed`, "click to hide or show"]) }));
  const others = scores.slice(COLOURS).map((score) => score.solution);
  if (others.length) entries.push({ class: "c0", name: counted(others.length, "other"), tip: others.slice(0, 20).join("\n") });
  const redrawn = () => {
    made.redraw();
    list.querySelectorAll("button").forEach((one) => one.setAttribute("aria-pressed", String(!hidden.has(one.series))));
  };
  const list = legend(entries, hidden, redrawn);
  made.element.append(list);
  return made.element;
};

const scatterNote = (runs) => rowsOf([
  "Dashed: the definition’s reference. A cross is a failed evaluation.",
  runs.some((run) => run.interval) ? "Bars: 95 % intervals." : "These traces hold no samples, so no interval is shown.",
]).replace("\n", " ");
