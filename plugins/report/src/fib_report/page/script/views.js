// The lists: definitions, solutions, workloads, evaluations, failures, coverage.

const definitionRows = (data) => [...data.scoresByDefinition].flatMap(([name, scores]) => (
  [...grouped(scores, (score) => settingOf(score.hardware, score.timed)).values()].map((group) => {
    const { hardware: device, timed } = group[0];
    const best = group.find((score) => score.best);
    const total = group.reduce((sum, score) => sum + score.workloads, 0);
    const passed = group.reduce((sum, score) => sum + score.passed, 0);
    return { name, device, timed, type: group[0].type, solutions: group.length, best, total, passed };
  })));

const definitionsView = (data, route) => new Table({
  label: "definitions", noun: "row", rows: definitionRows(data), route,
  choices: [{ name: "Type", value: (d) => d.type }, { name: "Device", value: (d) => d.device }],
  columns: [
    { name: "Definition", value: (d) => d.name, show: (d) => definitionLink(d.name), class: "name" },
    { name: "Type", value: (d) => d.type, wide: true },
    ...deviceColumn(data, (d) => d.device),
    ...(data.mixed ? [{ name: "Timed by", value: (d) => d.timed, wide: true }] : []),
    { name: "Solutions", numeric: true, value: (d) => d.solutions, descending: true, wide: true },
    { name: "Passed", numeric: true, value: (d) => d.passed / d.total, show: (d) => `${d.passed}/${d.total}`, descending: true, wide: true },
    { name: "Best solution", value: (d) => d.best?.solution ?? "", class: "name",
      show: (d) => (d.best ? solutionLink(d.best.solution) : make("span", { class: "note" }, "not solved")) },
    { name: "Latency", numeric: true, value: (d) => d.best?.mean_latency_ms, tip: (d) => scoreTip(d.best),
      show: (d) => (d.best ? figureWith(scoreLatency(d.best), d.best) : "–"),
        help: "Geometric mean of the best solution over its workloads, with its 95% interval",
    csv: [["geomean_ms", (d) => d.best?.mean_latency_ms], ["marks", (d) => (d.best ? marksCsv[1](d.best) : "")]] },
    { name: "Speed-up", numeric: true, value: (d) => d.best?.speedup, show: (d) => ratio(d.best?.speedup), descending: true, wide: true,
      help: "Of the best solution over the reference: geometric mean over its workloads" },
    ...limitColumn(data, (d) => d.best?.share ?? null, null, "Share of the device’s limit of the best solution"),
  ],
}).element;

const solutionsView = (data, route) => new Table({
  label: "solutions", noun: "row", columns: scoreColumns(data, "wide"), rows: data.scores, route,
  choices: [{ name: "Definition", value: (s) => s.definition }, { name: "Author", value: (s) => s.author },
    { name: "Language", value: (s) => s.language }, { name: "Device", value: (s) => s.hardware }],
}).element;

// One row for each workload, device, timer and cache mode, with the fastest undisputed result.
const workloadRows = (runs) => {
  const groups = grouped(runs, (run) => JSON.stringify([run.definition, run.uuid, run.device, run.passed ? run.timed : ""]));
  const rows = [...groups.values()].map((group) => {
    const passed = group.filter((run) => run.passed && run.latency && !run.disputed).sort((a, b) => a.latency - b.latency);
    return { ...group[0], best: passed[0], limit: group.find((run) => run.limit)?.limit ?? null, count: group.length };
  });
  // Failures have no timer: they get a row of their own only if nothing passed.
  const taskOf = (row) => JSON.stringify([row.definition, row.uuid, row.device]);
  const solved = new Set(rows.filter((row) => row.best).map(taskOf));
  return rows.filter((row) => row.best || !solved.has(taskOf(row)));
};

const workloadsTable = (data, runs, route, prefix, withDefinition) => new Table({
  label: "workloads", noun: "workload", rows: workloadRows(runs), route, prefix,
  choices: [{ name: "Type", value: (w) => w.type }, { name: "Definition", value: (w) => w.definition }, { name: "Device", value: (w) => w.device }],
  columns: [
    ...(withDefinition ? RUN_COLUMNS.definition() : []), ...RUN_COLUMNS.workload(), ...deviceColumn(data, (w) => w.device),
    ...(data.hasBytes ? [{ name: "Bytes", numeric: true, wide: true, value: (w) => w.bytes || null, tip: (w) => BASES[w.basis],
      show: (w) => (w.bytes ? atLeast(w, scaled(w.bytes, "B")) : "–"), help: "Minimum of bytes that a call reads and writes" }] : []),
    ...(data.hasOperations ? [{ name: "Operations", numeric: true, wide: true, value: (w) => w.operations || null,
      show: (w) => (w.operations ? scaled(w.operations, "") : "–") }] : []),
    ...(data.hasShares ? [{ name: "Limit", numeric: true, wide: true, value: (w) => w.limit, show: (w) => duration(w.limit),
      tip: (w) => w.limit && BOUNDS[w.bound],
      help: "The shortest possible time on this device, according to ‘fib calibrate’" }] : []),
    { name: "Fastest", value: (w) => w.best?.solution ?? "", class: "name",
      show: (w) => (w.best ? solutionLink(w.best.solution) : make("span", { class: "note" }, "not solved")) },
    { name: "Latency", numeric: true, value: (w) => w.best?.latency,
      show: (w) => (w.best ? figureWith(evaluationLink(w.best, latencyText(w.best)), w.best) : "–"),
      help: "Of the fastest, with its 95% interval",
        csv: [["latency_ms", (w) => w.best?.latency], ["marks", (w) => (w.best ? marksCsv[1](w.best) : "")]] },
    ...limitColumn(data, (w) => w.best?.share ?? null, (w) => w.best?.share && BOUNDS[w.bound], "Limit over the latency of the fastest"),
    ...(data.hasBytes ? [{ name: "GB/s", numeric: true, wide: true, value: (w) => w.best?.gbps, show: (w) => bandwidthText(w.best),
      descending: true }] : []),
    ...(data.hasOperations ? [{ name: "TFLOP/s", numeric: true, wide: true, value: (w) => w.best?.tflops,
      show: (w) => (w.best?.tflops ? digits(w.best.tflops) : "–"), descending: true }] : []),
    { name: "Evaluations", numeric: true, wide: true, value: (w) => w.count, descending: true },
  ],
}).element;

const workloadsView = (data, route) => workloadsTable(data, data.runs, route, "", true);

const evaluationsView = (data, route) => new Table({
  label: "evaluations", noun: "evaluation", rows: data.runs, route, choices: [{ name: "Definition", value: (r) => r.definition }, ...runChoices],
  columns: runColumns(data, "status definition solution workload device latency rates speedup samples timed time"),
}).element;

const causeRows = (runs) => [...grouped(runs, (run) => JSON.stringify([run.status, run.cause])).values()]
  .map((group) => ({
    status: group[0].status, cause: group[0].cause, runs: group.length, example: group[0],
    solutions: new Set(group.map((run) => run.solution)).size,
    definitions: new Set(group.map((run) => run.definition)).size,
  }))
  .sort((a, b) => b.runs - a.runs);

const failuresView = (data, route) => {
  const failed = data.runs.filter((run) => !run.passed);
  if (!failed.length) return make("p", { class: "note" }, "Nothing failed.");
  const causes = new Table({
    label: "causes", noun: "cause", rows: causeRows(failed), route, prefix: "c.",
    columns: [
      { name: "Status", value: (c) => statusLabel(c.status), class: "result",
        show: (c) => linkTo(evaluationHref(c.example), statusMark(c.status, statusLabel(c.status))),
        help: "Links to an example" },
      { name: "Cause (from the log)", value: (c) => c.cause, class: "cause" },
      ...[["Evaluations", "runs"], ["Solutions", "solutions"], ["Definitions", "definitions"]]
        .map(([name, field]) => ({ name, numeric: true, value: (c) => c[field], descending: true, wide: field !== "runs" })),
    ],
  });
  const all = new Table({ label: "failed evaluations", noun: "failure", rows: failed, choices: runChoices, route,
    columns: runColumns(data, "status definition solution workload device cause time")
      .map((one) => ({ ...one, wide: one.wide || one.name === "Workload" })) });
  return [
    make("h3", {}, "Causes"), causes.element, make("h3", {}, "Failed evaluations"), all.element,
    make("div", { class: "pair charts" }, statusesFigure(failed, (run) => run.author, "By author", "failures"),
      statusesFigure(failed, (run) => run.definition, "By definition", "failures")),
  ];
};

const coverageView = (data, route) => {
  const devices = [...new Set(data.coverage.flatMap((one) => Object.keys(one.evaluated)))];
  return [make("p", { class: "note" }, "Evaluated pairs of solution and workload on each device, and what is missing."),
    new Table({
      label: "coverage", noun: "definition", rows: data.coverage, route,
      choices: [{ name: "Type", value: (c) => c.op_type }],
      columns: [
        { name: "Definition", value: (c) => c.definition, class: "name",
          show: (c) => (data.byDefinition.has(c.definition) ? definitionLink(c.definition) : breakable(c.definition)) },
        { name: "Type", value: (c) => c.op_type, wide: true },
        { name: "Solutions", numeric: true, value: (c) => c.solutions, wide: true },
        { name: "Workloads", numeric: true, value: (c) => c.workloads, wide: true },
        ...devices.map((device, index) => ({ name: clip(device, 24), numeric: true, value: (c) => c.evaluated[device] / c.pairs, wide: index > 0,
          show: (c) => `${c.evaluated[device]}/${c.pairs}` })),
        { name: "Missing", value: (c) => c.missing.join("; "), class: "cause" },
      ],
    }).element];
};
