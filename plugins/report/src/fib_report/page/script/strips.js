// Distributions of the samples of evaluations: a dot for each sample, or for each 1/32 of them.

const STRIPS = 16;
const ROW = 46;

// Similar quantities, not from zero; logarithmic if they differ more than tenfold.
const closeAxis = (values, start, end) => {
  const kept = values.filter((value) => value > 0 && Number.isFinite(value));
  const [low, high] = [Math.min(...kept), Math.max(...kept)];
  if (!kept.length || high / low > 10) return quantityAxis(values, start, end);
  const step = niceStep(Math.max(high - low, high * 1e-3) / 5);
  const first = Math.floor(low / step + 1e-9), last = Math.max(Math.ceil(high / step - 1e-9), first + 1);
  const ticks = Array.from({ length: last - first + 1 }, (_, index) => (first + index) * step);
  return { at: scale(first * step, last * step, start, end), ticks, low: first * step };
};

// Tukey's fences on a logarithmic scale, from the quartiles of the points.
const fences = (points) => {
  const at = (share) => points[Math.round(share * (points.length - 1))];
  const [low, high] = [at(0.25), at(0.75)];
  if (points.length < 8 || !(low > 0)) return [-Infinity, Infinity];
  const reach = (high / low) ** 1.5;
  return [low / reach, high * reach];
};

// Dots that would overlap are stacked, alternately above and below the middle.
const swarm = (points, axis, middleOf, style, kind) => {
  const [low, high] = fences(points);
  const taken = new Map();
  return points.map((point) => {
    const x = axis.at(point), bin = Math.round(x / 4.2);
    const count = taken.get(bin) ?? 0;
    taken.set(bin, count + 1);
    const offset = Math.min(Math.ceil(count / 2) * 4.2, ROW / 2 - 8) * (count % 2 ? -1 : 1);
    const far = kind === "" && (point < low || point > high);
    return make("circle", { cx: x.toFixed(1), cy: (middleOf + offset).toFixed(1), r: far ? 3 : 2.1,
      class: `sample ${style} ${kind}${far ? "far" : ""}` });
  });
};

const stripTip = (run) => rowsOf([
  run.solution, `${duration(run.latency)}${plusMinus(run.latency, run.interval)}`,
  run.interval ? `95% interval: ${range(run.interval, duration)}` : "no interval",
  run.samples > 32 ? `${run.samples.toLocaleString("en")} samples; each dot is 1/32 of them` : counted(run.samples, "sample"),
  run.dropped ? `grey: ${run.dropped} dropped samples` : "",
  [run.timed, run.rule].filter(Boolean).join(" · "),
]);

// runs: the fastest first. style: the colour of a run.
const drawStrips = (runs, shapes, style, width) => {
  const several = runs.length > 1;
  const [left, right, top] = [several ? Math.min(170, width * 0.3) : 30, width - 30, 6];
  const bottom = top + ROW * runs.length;
  const pointsAt = (place) => (place < 0 ? [] : shapes[place] ?? []);
  const ends = (points) => (points.length ? [points[0], points[points.length - 1]] : []);
  const axis = closeAxis(runs.flatMap((run) => [run.latency, ...(run.interval ?? []), ...ends(pointsAt(run.shape)), ...ends(pointsAt(run.gone))]),
    left, right);
  const stride = Math.ceil(axis.ticks.length / Math.max(2, Math.floor((right - left) / 70)));
  const rows = runs.map((run, index) => {
    const y = top + ROW * (index + 0.5);
    const name = style(run);
    const band = run.interval && make("rect", { class: `band ${name}`, x: axis.at(run.interval[0]), y: y - ROW / 2 + 4, height: ROW - 8,
      width: Math.max(1, axis.at(run.interval[1]) - axis.at(run.interval[0])) });
    const at = axis.at(run.latency);
    return make("g", { class: "strip", "data-tip": stripTip(run), "data-run": run.index, onclick: () => openRun(run) },
      make("rect", { class: "hit", x: 0, y: y - ROW / 2, width, height: ROW }),
      several && make("text", { x: left - 10, y: y + 4, class: "name", "text-anchor": "end" }, clip(run.short, Math.floor((left - 12) / 7))),
      band, swarm(pointsAt(run.gone), axis, y, "", "gone"), swarm(pointsAt(run.shape), axis, y, name, ""),
      line(at, y - ROW / 2 + 4, at, y + ROW / 2 - 4, "median"));
  });
  return drawing(width, bottom + 26, `Distribution of the samples of ${counted(runs.length, "evaluation")}`,
    axis.ticks.filter((_, index) => index % stride === 0).map((tick) => [line(axis.at(tick), top, axis.at(tick), bottom, "grid"),
      label(axis.at(tick), bottom + 17, duration(tick), "middle")]),
    rows);
};

// runs: of one definition on one device. scores: its solutions, the best first.
const stripsFigure = (data, runs, scores) => {
  const names = new Map(scores.map((score, index) => [score.solution, colour(index)]));
  const drawn = runs.filter((run) => run.passed && (run.shape >= 0 || run.interval));
  const workloads = [...new Map(drawn.map((run) => [run.uuid, run])).values()].sort((a, b) => a.order - b.order);
  let uuid = workloads[0].uuid, shapes = null;
  const draw = (width) => {
    const all = drawn.filter((run) => run.uuid === uuid).sort((a, b) => a.latency - b.latency);
    const parts = [drawStrips(all.slice(0, STRIPS), shapes ?? [], (run) => names.get(run.solution), width)];
    if (all.length > STRIPS) parts.push(make("p", { class: "note" }, `${counted(all.length - STRIPS, "slower solution")} not drawn`));
    if (all.some((run) => run.samples && run.shape < 0)) parts.push(make("p", { class: "note" },
      "Some samples were omitted to keep this page small; see the dataset."));
    return parts;
  };
  const note = "Each dot is a sample, or 1/32 of the samples if there are more. Line and band: the latency and its 95% interval. Rings: outliers. Grey: dropped samples.";
  const pick = (value) => { uuid = value; made.redraw(); };
  const controls = workloads.length > 1 && make("p", { class: "controls" }, picker("Workload", workloads.map((run) => [run.uuid, run.label]), pick));
  const made = figure("Samples", note, draw, controls);
  made.element.classList.add("strips");
  data.drawable().then((found) => { shapes = found; made.redraw(); });
  return made.element;
};
