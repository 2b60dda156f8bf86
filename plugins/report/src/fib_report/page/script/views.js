// The views of the page: each makes its content once, when it is first looked at.

const hrefOf = (view, name = "", query = {}) => {
  const words = new URLSearchParams(query).toString();
  return `#/${view}${name ? `/${encodeURIComponent(name)}` : ""}${words ? `?${words}` : ""}`;
};
const definitionLink = (name) => make("a", { href: hrefOf("definition", name) }, breakable(name));

const outcome = (status, text) => make("span", { class: "outcome" }, make("span", { class: `mark ${statusClass(status)}` }), text);

const deviceColumn = (data, value) => (data.several ? [{ name: "Device", value }] : []);

const scoreOutcome = (score) => {
  const worst = Object.keys(score.statuses).pop() ?? "";
  const some = score.passed && score.passed < score.workloads;
  if (some) return [worst, `${score.workloads - score.passed} failed`];
  if (score.disputed) return [worst, `${score.disputed} disputed`];
  if (score.loose) return [worst, `${score.loose} loose tolerance`];
  return [worst, score.replayable ? `${score.replayable} replayable` : statusLabel(worst)];
};

const scoreTip = (score) => rowsOf([
  score.interval_ms && `geometric mean: ${duration(score.mean_latency_ms)}, 95 % interval ${range(score.interval_ms, duration)}`,
  score.without_interval ? `no interval on ${score.without_interval} of ${score.passed} workloads` : "",
  score.disputed ? `disputed on ${score.disputed} of ${score.passed} workloads: not ranked` : "",
  score.replayable ? `replayable on ${score.replayable} of ${score.passed} workloads: results may come from memory` : "",
  score.loose ? `loose tolerance on ${score.loose} of ${score.passed} workloads: not right by dtype` : "",
  score.dropped ? `${score.dropped} of ${score.samples} samples dropped` : "",
  score.references.before ? `reference timed before, not beside, on ${score.references.before} workloads` : "",
]);

const scoreColumns = (data, withDefinition) => [
  ...(withDefinition ? [{ name: "Definition", value: (s) => s.definition, show: (s) => definitionLink(s.definition), class: "name" }] : []),
  { name: "Solution", value: (s) => s.solution, class: "name",
    show: (s) => make("span", {}, breakable(s.solution), s.best && " ", s.best && make("span", { class: "badge" }, "best")) },
  { name: "Author", value: (s) => s.author },
  { name: "Language", value: (s) => s.language },
  ...deviceColumn(data, (s) => s.hardware),
  ...(data.mixed ? [{ name: "Timed by", value: (s) => s.timed }] : []),
  { name: "Rank", numeric: true, value: (s) => (s.rank ? Number(s.rank.replace("=", "")) : null), show: (s) => s.rank ?? "–",
    help: "By latency, among those that passed everywhere; equal where the intervals overlap" },
  { name: "Outcome", value: (s) => scoreOutcome(s)[1], show: (s) => outcome(...scoreOutcome(s)),
    tip: (s) => Object.entries(s.statuses).map(([name, count]) => `${statusLabel(name)}: ${count}`).join("\n") },
  { name: "Passed", numeric: true, value: (s) => s.passed, show: (s) => `${s.passed}/${s.workloads}`, descending: true },
  { name: "Latency", numeric: true, value: (s) => s.median_latency_ms, show: (s) => duration(s.median_latency_ms),
    help: "Median over the workloads that passed" },
  { name: "± 95 %", numeric: true, value: (s) => halfWidth(s.mean_latency_ms, s.interval_ms), tip: scoreTip,
    help: "Half of the 95 % interval of the latencies' geometric mean, as a share of it",
    show: (s) => plusMinus(s.mean_latency_ms, s.interval_ms).trim() || "–" },
  { name: "Speed-up", numeric: true, value: (s) => s.speedup, show: (s) => ratio(s.speedup), descending: true,
    help: "Over the reference: geometric mean over the workloads that passed" },
  { name: "Range", numeric: true, value: (s) => s.min_speedup,
    show: (s) => (s.min_speedup === null ? "–" : `${ratio(s.min_speedup)} – ${ratio(s.max_speedup)}`),
    help: "Smallest and largest speed-up" },
  { name: "Max. error", numeric: true, value: (s) => s.max_absolute_error, show: (s) => small(s.max_absolute_error),
    help: "Largest absolute error" },
];

const samplesText = (run) => {
  if (!run.samples) return "–";
  const count = run.samples.toLocaleString("en");
  return run.dropped ? `${count} (−${run.dropped.toLocaleString("en")})` : count;
};

const mark = (run) => (run.disputed ? " (disputed)" : run.loose ? " (loose tolerance)" : run.replayable ? " (replayable)" : "");

const runColumns = (data, open, withDefinition) => [
  { name: "Outcome", value: (r) => statusLabel(r.status), search: (r) => `${statusLabel(r.status)} ${r.status}`,
    show: (r) => make("button", { type: "button", class: "open", title: "Details and log", "data-run": r.index, onclick: () => open(r) },
      outcome(r.status, statusLabel(r.status))) },
  ...(withDefinition ? [{ name: "Definition", value: (r) => r.definition, show: (r) => definitionLink(r.definition), class: "name" }] : []),
  { name: "Solution", value: (r) => r.solution, class: "name" },
  { name: "Workload", value: (r) => r.label, class: "load", search: (r) => `${r.label} ${r.uuid}`, tip: (r) => r.uuid },
  ...deviceColumn(data, (r) => r.device),
  { name: "Latency", numeric: true, value: (r) => r.latency, show: (r) => duration(r.latency) + mark(r) },
  { name: "± 95 %", numeric: true, value: (r) => halfWidth(r.latency, r.interval), tip: (r) => range(r.interval, duration),
    help: "Half of the 95 % interval of the latency, as a share of it",
    show: (r) => plusMinus(r.latency, r.interval).trim() || "–" },
  { name: "Samples", numeric: true, value: (r) => r.samples, descending: true, show: samplesText,
    help: "Timed calls; in brackets those that do not count, since the device was slowed down", tip: (r) => r.rule },
  { name: "Speed-up", numeric: true, value: (r) => r.speedup, descending: true, tip: (r) => r.speedupInterval && range(r.speedupInterval, ratio),
    show: (r) => `${ratio(r.speedup)}${plusMinus(r.speedup, r.speedupInterval)}`, help: "Over the reference; with its 95 % interval" },
  ...(data.mixed ? [{ name: "Timed by", value: (r) => (r.passed ? r.timed : "") }] : []),
  { name: "Time", value: (r) => r.time, class: "time" },
];

const failureColumns = (data, open) => {
  const [first, ...rest] = runColumns(data, open, true);
  const kept = rest.filter((column) => ["Definition", "Solution", "Workload", "Device"].includes(column.name));
  return [first, ...kept, { name: "Cause", value: (r) => r.cause, class: "cause" }, rest[rest.length - 1]];
};

const runChoices = (data) => [
  { name: "Outcome", value: (r) => r.status, label: statusLabel },
  { name: "Author", value: (r) => r.author },
  { name: "Device", value: (r) => r.device },
];

const authorColumns = (data) => {
  const at = Object.keys(data.authors[0].fast);
  return [
    { name: "Author", value: (a) => a.name, class: "name" },
    ...(data.mixed ? [{ name: "Timed by", value: (a) => a.timed }] : []),
    { name: "Rank", numeric: true, value: (a) => Number(a.rank.replace("=", "")), show: (a) => a.rank,
      help: "By fast_1, then by the speed-up; equal where the 95 % intervals overlap" },
    { name: "Solved", numeric: true, value: (a) => a.solved / a.tasks, show: (a) => `${a.solved}/${a.tasks}`, descending: true,
      help: "Tasks (a workload of a definition on a device) solved correctly, of all there are" },
    { name: "Definitions", numeric: true, value: (a) => a.definitions, descending: true },
    { name: "Speed-up", numeric: true, value: (a) => a.speedup, descending: true,
      show: (a) => `${ratio(a.speedup)}${plusMinus(a.speedup, a.interval)}`, tip: (a) => a.interval && range(a.interval, ratio),
      help: "Over the reference: geometric mean over the solved tasks" },
    ...at.map((p) => ({ name: `fast_${Number(p)}`, numeric: true, value: (a) => a.fast[p], show: (a) => percent(a.fast[p]),
      descending: true, help: `Share of all tasks solved and more than ${Number(p)} times as fast as the reference` })),
    { name: "Fastest", numeric: true, value: (a) => a.first, descending: true, help: "Tasks in which nobody is faster" },
  ];
};

const overviewView = (data) => {
  const charts = [fastpFigure(Object.entries(data.curves), "author"), outcomesFigure(data.runs, (run) => run.author, "Outcomes by author")];
  const authors = data.authors.length
    ? [make("h2", {}, "Authors"),
      new Table({ label: "authors", noun: "author", columns: authorColumns(data), rows: data.authors }).element] : [];
  return [make("div", { class: "pair" }, charts), ...authors];
};

const definitionRows = (data) => [...data.scoresByDefinition].flatMap(([name, scores]) => (
  [...grouped(scores, (score) => JSON.stringify([score.hardware, score.timed])).values()].map((group) => {
    const { hardware: device, timed } = group[0];
    const best = group.find((score) => score.best);
    const total = group.reduce((sum, score) => sum + score.workloads, 0);
    const passed = group.reduce((sum, score) => sum + score.passed, 0);
    return { name, device, timed, type: group[0].type, solutions: group.length, best, total, passed };
  })));

const definitionsView = (data) => new Table({
  label: "definitions", noun: "row",
  rows: definitionRows(data),
  choices: [{ name: "Type", value: (d) => d.type }, { name: "Device", value: (d) => d.device }],
  columns: [
    { name: "Definition", value: (d) => d.name, show: (d) => definitionLink(d.name), class: "name" },
    { name: "Type", value: (d) => d.type },
    ...deviceColumn(data, (d) => d.device),
    ...(data.mixed ? [{ name: "Timed by", value: (d) => d.timed }] : []),
    { name: "Solutions", numeric: true, value: (d) => d.solutions, descending: true },
    { name: "Passed", numeric: true, value: (d) => d.passed / d.total, show: (d) => `${d.passed}/${d.total}`, descending: true },
    { name: "Best solution", value: (d) => d.best?.solution ?? "", class: "name",
      show: (d) => (d.best ? breakable(d.best.solution) : make("span", { class: "note" }, "not solved")) },
    { name: "Latency", numeric: true, value: (d) => d.best?.mean_latency_ms, tip: (d) => d.best && scoreTip(d.best),
      show: (d) => `${duration(d.best?.mean_latency_ms)}${d.best ? plusMinus(d.best.mean_latency_ms, d.best.interval_ms) : ""}`,
      help: "Geometric mean of the best over its workloads" },
    { name: "Speed-up", numeric: true, value: (d) => d.best?.speedup, show: (d) => ratio(d.best?.speedup), descending: true },
  ],
}).element;

const solutionsView = (data) => new Table({
  label: "solutions", noun: "row", columns: scoreColumns(data, true), rows: data.scores,
  choices: [{ name: "Author", value: (s) => s.author }, { name: "Language", value: (s) => s.language }, { name: "Device", value: (s) => s.hardware }],
}).element;

const evaluationsView = (data, open, route) => new Table({
  label: "evaluations", noun: "evaluation", columns: runColumns(data, open, true), rows: data.runs,
  choices: runChoices(data), query: route.query.get("q") ?? "",
}).element;

const causeRows = (runs) => [...grouped(runs, (run) => JSON.stringify([run.status, run.cause])).values()]
  .map((group) => ({
    status: group[0].status, cause: group[0].cause, runs: group.length, example: group[0],
    solutions: new Set(group.map((run) => run.solution)).size,
    definitions: new Set(group.map((run) => run.definition)).size,
  }))
  .sort((a, b) => b.runs - a.runs);

const failuresView = (data, open) => {
  const failed = data.runs.filter((run) => !run.passed);
  if (!failed.length) return make("p", { class: "note" }, "Nothing failed.");
  const causes = new Table({
    label: "causes", noun: "cause", rows: causeRows(failed),
    columns: [
      { name: "Outcome", value: (c) => statusLabel(c.status), show: (c) => make("button", { type: "button", class: "open",
        title: "Log of an example", "data-run": c.example.index, onclick: () => open(c.example) }, outcome(c.status, statusLabel(c.status))) },
      { name: "Cause, from the log", value: (c) => c.cause, class: "cause" },
      ...[["Evaluations", "runs"], ["Solutions", "solutions"], ["Definitions", "definitions"]]
        .map(([name, field]) => ({ name, numeric: true, value: (c) => c[field], descending: true })),
    ],
  });
  const all = new Table({ label: "failed evaluations", noun: "failure", columns: failureColumns(data, open), rows: failed, choices: runChoices(data) });
  return [
    make("div", { class: "pair" }, outcomesFigure(failed, (run) => run.author, "By author", "failures"),
      outcomesFigure(failed, (run) => run.definition, "By definition", "failures")),
    make("h2", {}, "Causes"), causes.element, make("h2", {}, "Failed evaluations"),
    make("p", { class: "note" }, "The outcome opens the log."), all.element,
  ];
};

const coverageView = (data) => {
  const devices = [...new Set(data.coverage.flatMap((one) => Object.keys(one.evaluated)))];
  return [make("p", { class: "note" }, "Pairs of a solution and a workload of the dataset that were evaluated on each device, and what is lacking."),
    new Table({
      label: "coverage", noun: "definition", rows: data.coverage,
      choices: [{ name: "Type", value: (c) => c.op_type }],
      columns: [
        { name: "Definition", value: (c) => c.definition, class: "name",
          show: (c) => (data.byDefinition.has(c.definition) ? definitionLink(c.definition) : breakable(c.definition)) },
        { name: "Type", value: (c) => c.op_type },
        { name: "Solutions", numeric: true, value: (c) => c.solutions },
        { name: "Workloads", numeric: true, value: (c) => c.workloads },
        ...devices.map((device) => ({ name: clip(device, 24), numeric: true, value: (c) => c.evaluated[device] / c.pairs,
          show: (c) => `${c.evaluated[device]}/${c.pairs}` })),
        { name: "Lacking", value: (c) => c.missing.join("; "), class: "cause" },
      ],
    }).element];
};
