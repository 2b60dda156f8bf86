// The views of one solution, one workload and one evaluation.

const unknown = (kind, name) => make("p", { class: "note" }, `This page has no ${kind} `, make("bdi", {}, name));

const facts = (pairs) => make("dl", {}, pairs
  .filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== "–")
  .map(([name, value]) => [make("dt", {}, name), make("dd", {}, value instanceof Node ? value : make("bdi", {}, value))]));

const axesText = (run) => Object.entries(run.axes).map(([name, value]) => `${name}=${value}`).join(" ");

// Evaluations with the change from the previous one with the same workload and timer.
const withChanges = (runs) => {
  const last = new Map();
  const changed = [...runs].sort((a, b) => (a.time < b.time ? -1 : a.time > b.time ? 1 : 0)).map((run) => {
    const key = JSON.stringify([run.solution, run.uuid, run.device, run.timed]);
    const before = run.latency ? last.get(key) : null;
    if (run.latency) last.set(key, run);
    return { ...run, change: before?.latency ? run.latency / before.latency : null, changeInDoubt: before && overlap(run.interval, before.interval) };
  });
  return changed.reverse();
};
const overlap = (one, other) => !one || !other || (one[0] <= other[1] && other[0] <= one[1]);

const historyColumn = { name: "Change", numeric: true, wide: true, value: (r) => r.change,
  help: "Latency over that of the previous evaluation; ≈ if the 95% intervals overlap",
  show: (r) => (r.change ? `${r.changeInDoubt ? "≈ " : ""}${ratio(r.change)}` : "–") };

// ------------------------------------------------------------------------------- solution

const sourceParts = async (data, run, other) => {
  const { files, texts } = await data.sources();
  const mine = files[run.place];
  if (!mine) return [make("p", { class: "note" }, "No source: the dataset lacks this solution, or the page was made without sources.")];
  const textOf = (place) => (place < 0 ? null : texts[place]);
  const lacking = () => make("p", { class: "note" }, "Omitted to keep this page small; see the dataset.");
  const block = (path, text) => (text === null ? lacking() : codeBlock(text, path));
  if (!other) return mine.flatMap(([path, place]) => [make("h3", {}, breakable(path)), block(path, textOf(place))]);
  const theirs = files[other.place] ?? [];
  const alone = mine.length === 1 && theirs.length === 1; // then their names may differ
  const pairs = alone ? [[mine[0][0], theirs[0][1], mine[0][1]]]
    : [...new Set([...theirs, ...mine].map(([path]) => path))]
      .map((path) => [path, ...[theirs, mine].map((some) => (some.find(([each]) => each === path) ?? [])[1])]);
  return [make("p", { class: "note" }, "Lines with − are only in ", solutionLink(other.solution), ", lines with + only in this solution."),
    ...pairs.flatMap(([path, before, after]) => {
      const [first, second] = [before, after].map((place) => (place === undefined ? "" : textOf(place)));
      return [make("h3", {}, breakable(path)), first === null || second === null ? lacking() : differenceBlock(first, second, path)];
    })];
};

const solutionView = (data, route) => {
  const [name] = route.names;
  const runs = data.bySolution.get(name);
  if (!runs) return unknown("solution", name);
  const here = { ...data, ...knownOf(runs) };
  const first = runs[0];
  const definitions = new Set(runs.map((run) => run.definition));
  const others = data.all.filter((run) => definitions.has(run.definition) && run.solution !== name);
  const rivals = [...new Map(others.map((run) => [run.solution, run])).values()]
    .sort((a, b) => collator.compare(a.solution, b.solution));
  const source = make("div", {}, make("p", { class: "note" }, "…"));
  const show = async (other) => source.replaceChildren(...await sourceParts(data, first, rivals.find((run) => run.solution === other)));
  const pick = rivals.length > 0 && make("p", { class: "controls" },
    picker("Compare with", [["", "none: show the source"], ...rivals.map((run) => [run.solution, run.solution])], (chosen) => {
    route.remember("with", chosen);
    show(chosen);
  }, route.query.get("with")));
  show(route.query.get("with"));
  const scores = data.scores.filter((score) => score.solution === name);
  return [
    facts([["Definition", put(make("span"), [...definitions].map((one, index) => [index ? ", " : "", definitionLink(one)]))],
      ["Author", first.author], ["Language", first.language]]),
    make("h3", {}, "Results"), new Table({ label: "results", noun: "result",
      columns: scoreColumns(here, definitions.size > 1).filter((one) => one.name !== "Solution"), rows: scores }).element,
    make("h3", {}, "Evaluations"), runs.some((run) => run.isOld)
      && make("p", { class: "note" }, "The latest first. Grey ones were superseded and do not count in rankings."),
    new Table({ label: "evaluations", noun: "evaluation", rows: withChanges(runs), route,
      choices: [runChoices[0], { name: "Workload", value: (r) => r.label }, runChoices[2]],
      columns: [...runColumns(here, "status workload device latency"), historyColumn, ...runColumns(here, "rates speedup timed time")] }).element,
    make("h3", {}, "Source"), pick, source,
  ];
};

// ------------------------------------------------------------------------------- workload

// Ranks within a workload: one more than the number of definitely faster ones.
const rankedRuns = (runs) => [...grouped(runs, (run) => settingOf(run.device, run.passed ? run.timed : "")).values()].flatMap((group) => {
  const timed = group.filter((run) => run.latency && !run.disputed);
  const places = new Map(timed.map((run) => [run,
    1 + timed.filter((other) => (other.interval?.[1] ?? other.latency) < (run.interval?.[0] ?? run.latency)).length]));
  const shared = grouped([...places.values()], (place) => place);
  return group.map((run) => ({ ...run, rank: places.get(run) ?? null, tied: places.has(run) && shared.get(places.get(run)).length > 1 }));
}).sort((a, b) => (a.rank ?? Infinity) - (b.rank ?? Infinity) || (a.latency ?? Infinity) - (b.latency ?? Infinity));

const workloadView = (data, route) => {
  const [name, uuid] = route.names;
  const runs = (data.byDefinition.get(name) ?? []).filter((run) => run.uuid === uuid);
  if (!runs.length) return unknown("workload", `${name} ${uuid ?? ""}`);
  const here = { ...data, ...knownOf(runs) };
  const [first] = runs;
  route.title = `${name}: ${first.label}`;
  const limits = [...new Map(runs.filter((run) => run.limit).map((run) => [run.device, run])).values()];
  const scores = data.scoresByDefinition.get(name);
  const rank = { name: "Rank", numeric: true, value: (r) => r.rank, show: (r) => (r.rank ? `${r.tied ? "=" : ""}${r.rank}` : "–"),
    help: "By latency on this workload; shared if the 95% intervals overlap" };
  const drawn = grouped(runs.filter((run) => run.shape >= 0), (run) => settingOf(run.device, run.timed));
  return [
    facts([["Definition", definitionLink(name)], ["Axes", axesText(first)], ["UUID", uuid],
      ["Bytes", first.bytes ? atLeast(first, scaled(first.bytes, "B")) : ""], ["Operations", first.operations ? scaled(first.operations, "") : ""],
      ["Basis", first.bytes ? BASES[first.basis] : ""],
      ...limits.map((run) => ["Limit", `${duration(run.limit)} on ${run.device}, ${BOUNDS[run.bound]}`])]),
    make("h3", {}, "Evaluations"),
    new Table({ label: "evaluations", noun: "evaluation", rows: rankedRuns(runs), choices: runChoices, route,
      columns: [...runColumns(here, "status solution device"), rank, ...runColumns(here, "latency rates speedup samples timed time")] }).element,
    [...drawn.values()].map((group) => stripsFigure(data, group, scores)),
  ];
};

// ------------------------------------------------------------------------------- evaluation

const logText = async (data, run) => {
  if (!run.length) return "(no log recorded)";
  const size = run.length.toLocaleString("en");
  return await data.log(run) ?? `(a log of ${size} characters, omitted to keep this page small; see the dataset)`;
};

// A cause is a line of the log with numbers replaced by "#".
const decisiveLine = (log, cause) => {
  if (!cause) return null;
  const pattern = cause.replace(/…$/, "").split("#").map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("\\S*?");
  const found = new RegExp(`^\\s*${pattern}`);
  return log.split("\n").find((text) => found.test(text)) ?? null;
};

const describe = (run) => facts([
  ["Status", statusMark(run.status, statusLabel(run.status))], ["Solution", solutionLink(run.solution)], ["Definition", definitionLink(run.definition)],
  ["Workload", workloadLink(run)], ["Axes", axesText(run)], ["Author", run.author], ["Language", run.language], ["Device", run.device],
    ["Time", run.time],
  ["Latency", run.latency === null ? null : figureWith(latencyText(run), run)],
  ...marksOf(run).map(([name, why]) => [`${name[0].toUpperCase()}${name.slice(1)}`, why]),
  ["95% interval", run.interval ? range(run.interval, duration) : ""],
  ["Middle half", run.samples ? `${duration(run.low)} – ${duration(run.high)} (${run.samples} samples)` : ""],
  ["Dropped samples", run.dropped ? `${run.dropped} of ${run.samples}: the device was throttled or busy` : ""],
  ["Limit", run.limit && run.passed ? `${duration(run.limit)}, ${BOUNDS[run.bound]}` : ""],
    ["Share of the limit", run.share ? limitShare(run.share) : ""],
  ["Bandwidth", run.gbps ? `${bandwidthText(run)} GB/s (${scaled(run.bytes, "B")})` : ""],
  ["Rate", run.tflops ? `${digits(run.tflops)} TFLOP/s (${scaled(run.operations, " operations")})` : ""],
  ["Timer", run.passed ? run.timed : ""], ["Stop rule", run.rule], ["Reference timed", run.passed ? run.referenceTimed : ""],
  ["Reference", duration(run.reference)], ["Speed-up", run.speedup ? `${ratio(run.speedup)}${plusMinus(run.speedup, run.speedupInterval)}` : ""],
  ["Max. absolute error", small(run.absolute)], ["Max. relative error", small(run.relative)],
]);

const settingPairs = (text) => (text ?? "").split("\n").filter(Boolean).map((row) => {
  const [name, ...rest] = row.split(": ");
  return [`${name.slice(0, 1).toUpperCase()}${name.slice(1)}`, rest.join(": ")];
});

const evaluationView = (data, route) => {
  const [name, uuid] = route.names;
  const same = (data.bySolution.get(name) ?? []).filter((run) => run.uuid === uuid);
  const [time, device] = ["time", "device"].map((one) => route.query.get(one));
  const run = same.find((one) => one.time === time && one.device === device) ?? same.find((one) => one.time === time) ?? same[0];
  if (!run) return unknown("evaluation", `${name} ${uuid ?? ""}`);
  route.title = `${name} on ${run.label}`;
  const log = make("pre", { tabindex: "0", dir: "auto", "aria-label": "Log", class: "log" }, "…");
  const reason = make("div"), timing = make("div"), settings = make("div");
  logText(data, run).then((text) => {
    const line = decisiveLine(text, run.cause);
    const at = line === null ? -1 : text.indexOf(line);
    log.replaceChildren(...(at < 0 ? [clean(text)] : [clean(text.slice(0, at)), make("mark", {}, line), clean(text.slice(at + line.length))]));
    if (!run.passed) reason.append(make("h3", {}, "Reason"),
      make("pre", { class: "reason", tabindex: "0", "aria-label": "Reason" }, (line ?? run.cause).trim()));
  });
  data.timing(run).then((lines) => lines && timing.append(make("h3", {}, "Timing"), make("pre", { tabindex: "0", "aria-label": "Timing" }, lines)));
  data.settings(run).then((text) => text && settings.append(make("h3", {}, "Settings and environment"), facts(settingPairs(text))));
  const earlier = withChanges(same.filter((one) => one.device === run.device));
  return [
    run.isOld && make("p", { class: "note" }, "A later evaluation supersedes this one."),
    make("div", { class: "pair" }, make("div", {}, describe(run), reason), run.shape >= 0 && stripsFigure(data, [run], [run])),
    make("h3", {}, "Log"), log, timing, settings,
    earlier.length > 1 && [make("h3", {}, "Evaluations of the same solution on this workload"),
      new Table({ label: "evaluations", noun: "evaluation", rows: earlier,
        columns: [...runColumns(data, "status latency"), historyColumn,
        ...runColumns({ ...data, ...knownOf(same) }, "rates timed time")
        .map((one) => ({ ...one, wide: one.wide && one.name !== "Time" }))] }).element],
  ];
};
