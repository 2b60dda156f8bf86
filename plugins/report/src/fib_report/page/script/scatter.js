// Latency or speed-up of each solution of a definition, over an axis of its workloads.

const BY_WORKLOAD = "(workload)";
const middle = (values) => {
  const ordered = [...values].sort((a, b) => a - b);
  const half = Math.floor(ordered.length / 2);
  return ordered.length % 2 ? ordered[half] : (ordered[half - 1] + ordered[half]) / 2;
};

// The axes in which workloads differ, the most distinctive first.
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

// The position of each workload: by the value of an axis, or side by side.
const places = (runs, axis, left, right) => {
  if (axis === BY_WORKLOAD) {
    const ordered = [...new Map(runs.map((run) => [run.uuid, run])).values()].sort((a, b) => a.order - b.order);
    const step = (right - left) / ordered.length;
    const position = new Map(ordered.map((run, index) => [run.uuid, left + (index + 0.5) * step]));
    const ticks = ordered.map((run) => [position.get(run.uuid), run.label]);
    return { of: (run) => position.get(run.uuid), ticks, slanted: true, room: step * 0.8 };
  }
  const kept = runs.filter((run) => axis in run.axes);
  const values = [...new Set(kept.map((run) => run.axes[axis]))].sort((a, b) => a - b);
  const [low, high] = [values[0], values[values.length - 1]];
  const logarithmic = low > 0 && high / low > 10;
  const at = scale(low, high, left + 24, right - 24, logarithmic);
  const ticks = values.map((value) => [at(value), value.toLocaleString("en")]);
  const gaps = ticks.slice(1).map(([x], index) => x - ticks[index][0]);
  return { of: (run) => (axis in run.axes ? at(run.axes[axis]) : null), ticks, slanted: false, room: Math.min(60, ...gaps) * 0.8 };
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
  run.interval ? `95% interval: ${range(run.interval, duration)}` : "",
  run.share ? `${limitShare(run.share)} of the limit (${duration(run.limit)}, ${BOUNDS[run.bound]})` : "",
  run.samples ? `middle half of ${run.samples} samples: ${duration(run.low)} – ${duration(run.high)}` : "",
  ...marksOf(run).map(([name, why]) => `${name}: ${why}`),
  run.dropped ? `${run.dropped} samples dropped` : "",
  run.passed ? [run.timed, run.rule, run.referenceTimed && `reference timed ${run.referenceTimed}`].filter(Boolean).join(" · ") : "",
  "click for details",
]);

// Series that share a position are drawn side by side, so that points do not hide each other.
const dodged = (place, order, run) => {
  const x = place.of(run);
  return x === null ? null : x + (order.get(run.solution) - (order.size - 1) / 2) * Math.min(5, place.room / order.size);
};

const seriesParts = (runs, at, axis, value, spread, name) => {
  const points = runs.filter((run) => value(run) && at(run) !== null)
    .map((run) => ({ run, x: at(run), y: axis.at(value(run)) }));
  const columns = [...grouped(points, (point) => point.x)].sort((a, b) => a[0] - b[0]);
  const path = columns.map(([x, group]) => `${x.toFixed(1)},${middle(group.map((one) => one.y)).toFixed(1)}`).join(" ");
  const whiskers = points.map(({ run, x }) => {
    const ends = spread(run);
    if (!ends) return null;
    const [low, high] = [axis.at(ends[0]), axis.at(ends[1])];
    return make("path", { d: `M${x} ${low}V${high}M${x - 4} ${low}h8M${x - 4} ${high}h8`, class: `whisker ${name}` });
  });
  const dots = points.map(({ run, x, y }) => make("circle", { cx: x, cy: y, r: 3.5, class: `dot ${name}${run.disputed ? " doubt" : ""}`,
    "data-tip": runTip(run), "data-run": run.index, onclick: () => openRun(run) }));
  return [make("polyline", { points: path, class: `curve ${name}` }), whiskers, dots];
};

const CLUSTER = 22;

// A row for each kind of failure; failures close to each other are one mark with a count.
const failureParts = (runs, place, top, left) => {
  const rows = [...grouped(runs.filter((run) => !run.passed && place.of(run) !== null), (run) => run.status)]
    .sort((a, b) => STATUSES.indexOf(a[0]) - STATUSES.indexOf(b[0]));
  return rows.map(([status, group], index) => {
    const y = top + CLUSTER * index;
    const clusters = [];
    for (const run of group.sort((a, b) => place.of(a) - place.of(b))) {
      const last = clusters[clusters.length - 1];
      if (last && place.of(run) - last.x < CLUSTER) last.runs.push(run);
      else clusters.push({ x: place.of(run), runs: [run] });
    }
    const marks = clusters.map(({ x, runs: some }) => {
      const lines = [...grouped(some, (run) => run.solution)].slice(0, 12).map(([name, mine]) => `${name}: ${clip(mine[0].cause, 90)}`);
      const one = some.length === 1;
      const { definition, uuid } = some[0];
      const all = some.every((run) => run.uuid === uuid) ? hrefOf("workload", [definition, uuid], { status })
        : hrefOf("evaluations", [], { definition, status });
      return make("g", { class: `cluster ${statusClass(status)}`,
        "data-tip": rowsOf([`${statusLabel(status)}: ${counted(some.length, "evaluation")}`, ...lines]),
        "data-run": one && some[0].index, onclick: () => (one ? openRun(some[0]) : go(all)) },
      make("circle", { cx: x, cy: y, r: 9 }), label(x, y + 4, some.length > 99 ? "99+" : some.length, "middle", "number"));
    });
    return [label(left - 12, y + 4, FAILURE_WORDS[status], "end"), marks];
  });
};

const FAILURE_WORDS = { INCORRECT_SHAPE: "shape", INCORRECT_NUMERICAL: "numerical", INCORRECT_DTYPE: "dtype",
  RUNTIME_ERROR: "runtime", COMPILE_ERROR: "compile", TIMEOUT: "timeout" };

// A line through one value for each position.
const throughPlaces = (runs, place, axis, value, style) => {
  const known = runs.filter((run) => value(run) && place.of(run) !== null);
  const columns = [...grouped(known, (run) => place.of(run))].sort((a, b) => a[0] - b[0]);
  const points = columns.map(([x, group]) => [x, axis.at(middle(group.map(value))).toFixed(1)]);
  if (points.length === 1) points.splice(0, 1, [points[0][0] - 30, points[0][1]], [points[0][0] + 30, points[0][1]]);
  return make("polyline", { points: points.join(" "), class: style });
};

const SHOWN = {
  latency: { word: "latency", value: (run) => run.latency, spread: (run) => run.interval, write: duration, axis: quantityAxis },
  speedup: { word: "speed-up", value: (run) => run.speedup, spread: (run) => run.speedupInterval, write: ratio, axis: ratioAxis },
  share: { word: "share of the limit", value: (run) => run.share,
    spread: (run) => run.interval && run.limit && [run.limit / run.interval[1], run.limit / run.interval[0]],
    write: limitShare, axis: quantityAxis },
};

const drawScatter = (runs, names, hidden, options, width) => {
  const [left, right, top, bottom] = [68, width - 12, 12, 262];
  const { word, value, spread, write, axis: make_ } = SHOWN[options.y];
  const shown = runs.filter((run) => !hidden.has(run.solution));
  const place = places(runs, options.x, left, right);
  const order = new Map([...names.keys()].filter((name) => !hidden.has(name)).map((name, index) => [name, index]));
  const others = options.y === "latency" ? (run) => [run.reference, run.limit] : () => [];
  const values = shown.flatMap((run) => [value(run), ...others(run), ...(spread(run) ?? [])]);
  const axis = make_(values.filter(Boolean), bottom, top);
  const kinds = new Set(shown.filter((run) => !run.passed && place.of(run) !== null).map((run) => run.status)).size;
  const failed = bottom + 16;
  const ticksAt = failed + CLUSTER * Math.max(kinds - 0.5, 0);
  const below = ticksAt + (place.slanted ? 76 : 40);
  const series = [...names].filter(([name]) => !hidden.has(name)).reverse(); // the best is drawn last, on top
  const byName = grouped(shown, (run) => run.solution);
  return drawing(width, below, `${word} of each solution over ${options.x}`,
    acrossGrid(axis, left, right, write),
    line(left, bottom, right, bottom, "axis"), axisTicks(place.ticks, place.slanted, ticksAt),
    options.y === "speedup" && line(left, axis.at(1), right, axis.at(1), "reference"),
    options.y === "latency" && [throughPlaces(shown, place, axis, (run) => run.reference, "reference"),
      throughPlaces(shown, place, axis, (run) => run.limit, "limit")],
    failureParts(shown, place, failed + 4, left),
    series.map(([name, style]) => seriesParts(byName.get(name) ?? [], (run) => dodged(place, order, run), axis, value, spread, style)),
    label(right, below - 4, options.x === BY_WORKLOAD ? "workloads, smaller ones first" : options.x, "end"));
};

const picker = (name, entries, changed, chosen = null) => {
  const list = make("select", { "aria-label": name, onchange: () => changed(list.value) },
    entries.map(([value, text]) => make("option", { value }, clip(text, 40))));
  entries.forEach(([value], index) => { list.options[index].value = value; });
  if (entries.some(([value]) => value === chosen)) list.value = chosen;
  return make("label", {}, `${name} `, list);
};

// runs: of one definition on one device. scores: its solutions, the best first.
const scatterFigure = (runs, scores) => {
  const names = new Map(scores.map((score, index) => [score.solution, colour(index)]));
  const axes = varyingAxes(runs);
  const options = { x: axes[0] ?? BY_WORKLOAD, y: "latency" };
  const hidden = new Set();
  const draw = (width) => [drawScatter(runs, names, hidden, options, width)];
  const pick = (field) => (value) => { options[field] = value; made.redraw(); };
  const controls = make("p", { class: "controls" },
    picker("Show", Object.entries(SHOWN).filter(([, one]) => one.word === "latency" || runs.some(one.value)).map(([name, one]) => [name, one.word]),
      pick("y")),
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
  "Dashed: the definition’s reference.",
  runs.some((run) => run.limit) ? "Dotted: the limit of the device." : "",
  runs.some((run) => run.interval) ? "Bars: 95% intervals." : "No intervals: these traces have no samples.",
  runs.some((run) => !run.passed) ? "Circles below the axis: number of failures." : "",
]).replaceAll("\n", " ");
