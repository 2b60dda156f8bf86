// The fast_p curves, and the bars with the statuses of evaluations.

const shareFrom = (curve, p) => curve.filter(([corner]) => corner <= p).pop()[1];

// The fast_p curve of speed-ups: the share of tasks that were solved more than p times as fast.
const curveOf = (speedups, tasks) => {
  const ordered = [...speedups].sort((a, b) => a - b);
  const corners = [[0, ordered.length / tasks]];
  ordered.forEach((speedup, index) => {
    const share = (ordered.length - index - 1) / tasks;
    if (corners[corners.length - 1][0] === speedup) corners[corners.length - 1][1] = share;
    else corners.push([speedup, share]);
  });
  return corners;
};

const drawCurves = (series, width) => {
  const [left, right, top, bottom] = [46, width - 14, 12, 230];
  const across = ratioAxis(series.flatMap(({ curve }) => curve.map(([p]) => p)), left, right);
  const up = { at: scale(0, 1, bottom, top), ticks: [0, 0.25, 0.5, 0.75, 1] };
  const stride = Math.ceil(across.ticks.length / Math.max(2, Math.floor((right - left) / 52)));
  const paths = series.map(({ name, curve, index }) => {
    let path = `M${left} ${up.at(shareFrom(curve, across.low)).toFixed(1)}`;
    for (const [p, share] of curve) if (p > across.low) path += `H${across.at(p).toFixed(1)}V${up.at(share).toFixed(1)}`;
    const tip = rowsOf([name, `${percent(curve[0][1])} solved`, `${percent(shareFrom(curve, 1))} faster than the reference`]);
    return make("path", { d: `${path}H${right}`, class: `curve thick ${colour(index)}`, "data-tip": tip });
  });
  const numbers = across.ticks.filter((tick) => Math.round(Math.log2(tick)) % stride === 0 || tick === 1);
  return drawing(width, 272, "Share of tasks solved over speed-up",
    acrossGrid(up, left, right, percent),
    numbers.map((tick) => [line(across.at(tick), top, across.at(tick), bottom, "grid"),
      label(across.at(tick), bottom + 17, ratio(tick), "middle")]),
    line(across.at(1), top, across.at(1), bottom, "reference"),
    paths.reverse(), // the first is drawn last, on top
    label((left + right) / 2, bottom + 36, "p: speed-up over the reference", "middle"));
};

// curves: [[name, curve]], the best first. Null if no task was solved.
const fastpFigure = (curves, whose, short = (name) => name) => {
  const solved = curves.filter(([, curve]) => curve[0][1] > 0);
  const idle = curves.filter(([, curve]) => curve[0][1] === 0).map(([name]) => name);
  if (!solved.length) return null;
  const series = solved.map(([name, curve], index) => ({ name, curve, index }));
  const entries = series.slice(0, COLOURS).map(({ name, curve, index }) => ({
    class: colour(index), name: `${clip(short(name), 26)} · ${percent(shareFrom(curve, 1))}`,
    tip: rowsOf([name, `fast_1 = ${percent(shareFrom(curve, 1))}`]) }));
  const others = series.slice(COLOURS).map(({ name }) => name);
  if (others.length) entries.push({ class: "c0", name: counted(others.length, "other"), tip: others.slice(0, 20).join("\n") });
  if (idle.length) entries.push({ class: "c0", name: `${counted(idle.length, whose)} solved nothing`, tip: idle.slice(0, 20).join("\n") });
  const note = "Share of all tasks that were solved more than p times as fast as the reference. The legend shows the share at p = 1.";
  const made = figure("Solved and faster than the reference (fast_p)", note, (width) => [drawCurves(series, width)]);
  made.element.append(legend(entries));
  return made.element;
};

const STATUSES = ["PASSED", "INCORRECT_SHAPE", "INCORRECT_NUMERICAL", "INCORRECT_DTYPE", "RUNTIME_ERROR", "COMPILE_ERROR", "TIMEOUT"];
const BARS = 12;

const countStatuses = (runs) => STATUSES
  .map((status) => [status, runs.filter((run) => run.status === status).length])
  .filter(([, count]) => count);

const drawBars = (rows, width) => {
  const longest = Math.max(...rows.map(([name]) => name.length));
  const [left, right, step] = [Math.min(longest * 8 + 16, width * 0.46), width - 50, 26];
  const parts = rows.map(([name, runs], index) => {
    const y = 6 + step * index;
    let x = left;
    const bars = countStatuses(runs).map(([status, count]) => {
      const size = ((right - left) * count) / runs.length;
      // A gap of two pixels separates neighbours whose colours are similar.
      const bar = make("rect", { x, y, width: Math.max(size - 2, 1), height: 16, rx: 2, class: statusClass(status),
        "data-tip": rowsOf([name, `${statusLabel(status)}: ${count} of ${runs.length}`]) });
      x += size;
      return bar;
    });
    const shown = make("text", { x: left - 10, y: y + 12, class: "name", "text-anchor": "end", "data-tip": name },
      clip(name, Math.floor((left - 12) / 7.8)));
    return [shown, bars, label(right + 8, y + 12, runs.length.toLocaleString("en"))];
  });
  return drawing(width, step * rows.length + 6, "Share of evaluations by status", parts);
};

// The statuses of evaluations, the largest group on top.
const statusesFigure = (runs, key, title, what = "evaluations") => {
  const groups = [...grouped(runs, key)].sort((a, b) => b[1].length - a[1].length || collator.compare(a[0], b[0]));
  const rows = groups.slice(0, BARS);
  const rest = groups.slice(BARS);
  if (rest.length) rows.push([counted(rest.length, "other"), rest.flatMap(([, group]) => group)]);
  const entries = countStatuses(runs).map(([status, count]) => ({
    class: statusClass(status), name: `${statusLabel(status)} · ${count.toLocaleString("en")}`, tip: `${status}: ${count}` }));
  const note = `Share of ${what}; totals on the right.`;
  const made = figure(title, note, (width) => [drawBars(rows, width)]);
  made.element.append(legend(entries));
  return made.element;
};
