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
  return [worst, some ? `${score.workloads - score.passed} failed` : statusLabel(worst)];
};

const scoreColumns = (data, withDefinition) => [
  ...(withDefinition ? [{ name: "Definition", value: (s) => s.definition, show: (s) => definitionLink(s.definition), class: "name" }] : []),
  { name: "Solution", value: (s) => s.solution, class: "name",
    show: (s) => make("span", {}, breakable(s.solution), s.best && " ", s.best && make("span", { class: "badge" }, "best")) },
  { name: "Author", value: (s) => s.author },
  { name: "Language", value: (s) => s.language },
  ...deviceColumn(data, (s) => s.hardware),
  { name: "Outcome", value: (s) => scoreOutcome(s)[1], show: (s) => outcome(...scoreOutcome(s)),
    tip: (s) => Object.entries(s.statuses).map(([name, count]) => `${statusLabel(name)}: ${count}`).join("\n") },
  { name: "Passed", numeric: true, value: (s) => s.passed, show: (s) => `${s.passed}/${s.workloads}`, descending: true },
  { name: "Latency", numeric: true, value: (s) => s.median_latency_ms, show: (s) => duration(s.median_latency_ms),
    help: "Median over the workloads that passed" },
  { name: "Speed-up", numeric: true, value: (s) => s.speedup, show: (s) => ratio(s.speedup), descending: true,
    help: "Over the reference: geometric mean over the workloads that passed" },
  { name: "Range", numeric: true, value: (s) => s.min_speedup,
    show: (s) => (s.min_speedup === null ? "–" : `${ratio(s.min_speedup)} – ${ratio(s.max_speedup)}`),
    help: "Smallest and largest speed-up" },
  { name: "Max. error", numeric: true, value: (s) => s.max_absolute_error, show: (s) => small(s.max_absolute_error),
    help: "Largest absolute error" },
];

const runColumns = (data, open, withDefinition) => [
  { name: "Outcome", value: (r) => statusLabel(r.status), search: (r) => `${statusLabel(r.status)} ${r.status}`,
    show: (r) => make("button", { type: "button", class: "open", title: "Details and log", "data-run": r.index, onclick: () => open(r) },
      outcome(r.status, statusLabel(r.status))) },
  ...(withDefinition ? [{ name: "Definition", value: (r) => r.definition, show: (r) => definitionLink(r.definition), class: "name" }] : []),
  { name: "Solution", value: (r) => r.solution, class: "name" },
  { name: "Workload", value: (r) => r.label, class: "load", search: (r) => `${r.label} ${r.uuid}`, tip: (r) => r.uuid },
  ...deviceColumn(data, (r) => r.device),
  { name: "Latency", numeric: true, value: (r) => r.latency, show: (r) => duration(r.latency) },
  { name: "Middle half", numeric: true, value: (r) => r.low, help: "Interquartile range of the samples, where there are some",
    show: (r) => (r.samples ? `${duration(r.low)} – ${duration(r.high)}` : "–") },
  { name: "Speed-up", numeric: true, value: (r) => r.speedup, show: (r) => ratio(r.speedup), descending: true },
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
    { name: "Solved", numeric: true, value: (a) => a.solved / a.tasks, show: (a) => `${a.solved}/${a.tasks}`, descending: true,
      help: "Tasks (a workload of a definition on a device) solved correctly, of all there are" },
    { name: "Definitions", numeric: true, value: (a) => a.definitions, descending: true },
    { name: "Speed-up", numeric: true, value: (a) => a.speedup, show: (a) => ratio(a.speedup), descending: true,
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
  [...grouped(scores, (score) => score.hardware)].map(([device, group]) => {
    const best = group.find((score) => score.best);
    const total = group.reduce((sum, score) => sum + score.workloads, 0);
    const passed = group.reduce((sum, score) => sum + score.passed, 0);
    return { name, device, type: group[0].type, solutions: group.length, best, total, passed };
  })));

const definitionsView = (data) => new Table({
  label: "definitions", noun: "row",
  rows: definitionRows(data),
  choices: [{ name: "Type", value: (d) => d.type }, { name: "Device", value: (d) => d.device }],
  columns: [
    { name: "Definition", value: (d) => d.name, show: (d) => definitionLink(d.name), class: "name" },
    { name: "Type", value: (d) => d.type },
    ...deviceColumn(data, (d) => d.device),
    { name: "Solutions", numeric: true, value: (d) => d.solutions, descending: true },
    { name: "Passed", numeric: true, value: (d) => d.passed / d.total, show: (d) => `${d.passed}/${d.total}`, descending: true },
    { name: "Best solution", value: (d) => d.best?.solution ?? "", class: "name",
      show: (d) => (d.best ? breakable(d.best.solution) : make("span", { class: "note" }, "not solved")) },
    { name: "Latency", numeric: true, value: (d) => d.best?.mean_latency_ms, show: (d) => duration(d.best?.mean_latency_ms),
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
