// Rooflines: solutions and the limit of the device.

const BOUNDS = { bytes: "limited by memory bandwidth", operations: "limited by operations", call: "limited by the shortest possible call", "": "" };

// Two plots: operations per second over operations per byte, or bytes per second over bytes.
const ROOFS = {
  operations: { word: "TFLOP/s", x: (run) => run.operations / run.bytes, y: (run) => run.tflops, roof: (run) => run.operations / run.limit / 1e9,
    across: "operations per byte", writeX: digits, writeY: (value) => scaled(value * 1e12, "FLOP/s") },
  bytes: { word: "GB/s", x: (run) => run.bytes, y: (run) => run.gbps, roof: (run) => run.bytes / run.limit / 1e6,
    across: "bytes to move", writeX: (value) => scaled(value, "B"), writeY: (value) => scaled(value * 1e9, "B/s") },
};

const logarithmicAxis = (values, start, end) => {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const ticks = decades(low, Math.max(high, low * 1.01));
  const [from, to] = [Math.min(low, ticks[0]) / 1.15, Math.max(high, ticks[ticks.length - 1]) * 1.15];
  return { at: scale(from, to, start, end, true), ticks };
};

const drawRoofline = (runs, names, mode, width) => {
  const { x, y, roof, across: words, writeX, writeY } = ROOFS[mode];
  const [left, right, top, bottom] = [84, width - 16, 12, 262];
  const drawn = runs.filter((run) => y(run));
  const limited = drawn.filter((run) => run.limit);
  const across = logarithmicAxis(drawn.map(x), left, right);
  const up = logarithmicAxis([...drawn.map(y), ...limited.map(roof)], bottom, top);
  const stride = Math.ceil(across.ticks.length / Math.max(2, Math.floor((right - left) / 62)));
  const roofs = [...new Map(limited.map((run) => [x(run), roof(run)]))].sort((a, b) => a[0] - b[0])
    .map(([at, value]) => [across.at(at), up.at(value)]);
  if (roofs.length === 1) roofs.splice(0, 1, [roofs[0][0] - 40, roofs[0][1]], [roofs[0][0] + 40, roofs[0][1]]);
  const dots = drawn.map((run) => make("circle", { cx: across.at(x(run)), cy: up.at(y(run)), r: 3.5, class: `dot ${names.get(run.solution)}`,
    "data-tip": rowsOf([runTip(run).replace("\nclick for details", ""),
      `${scaled(run.bytes, "B")} · ${digits(run.gbps)} GB/s${run.tflops ? ` · ${digits(run.tflops)} TFLOP/s` : ""}`, "click for details"]),
    "data-run": run.index, onclick: () => openRun(run) }));
  return drawing(width, bottom + 42, `${ROOFS[mode].word} of each solution over ${words}`,
    acrossGrid(up, left, right, writeY),
    across.ticks.filter((_, index) => index % stride === 0).map((tick) => [line(across.at(tick), top, across.at(tick), bottom, "grid"),
      label(across.at(tick), bottom + 17, writeX(tick), "middle")]),
    roofs.length && make("polyline", { points: roofs.map((point) => point.map((one) => one.toFixed(1))).join(" "), class: "limit" }),
    dots, label(right, bottom + 36, words, "end"));
};

const BASES = {
  "op family": "Bytes and operations are computed by the op family.",
  sizes: "Bytes are the sizes of all inputs and outputs, each counted once: a lower bound.",
  "some sizes": "Indices or masks select what is read, so only bytes that every call moves are counted (≥): a lower bound, without a share of the limit.",
};

// runs: of one definition on one device. Null if no bytes are known.
const rooflineFigure = (runs, scores) => {
  const known = runs.filter((run) => run.gbps);
  if (!known.length) return null;
  const names = new Map(scores.map((score, index) => [score.solution, colour(index)]));
  const modes = Object.keys(ROOFS).filter((mode) => known.some(ROOFS[mode].y));
  let mode = modes[0];
  const limits = known[0].basis === "some sizes" ? "" : known.some((run) => run.limit)
    ? "Dotted: the limit of this device, as ‘fib calibrate’ measured it."
    : "No limit: this machine has no settled calibration of this device; run ‘fib calibrate’.";
  const controls = modes.length > 1 && make("p", { class: "controls" },
    picker("Show", modes.map((one) => [one, `${ROOFS[one].word} over ${ROOFS[one].across}`]), (value) => { mode = value; made.redraw(); }));
  const made = figure("Roofline", `${BASES[known[0].basis]} ${limits}`, (width) => [drawRoofline(known, names, mode, width)], controls);
  return made.element;
};
