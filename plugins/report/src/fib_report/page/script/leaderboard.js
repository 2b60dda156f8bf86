// The first view: the ranking of authors, and the best solutions of each definition.

const RANKS = 3; // shown for each definition

// Geometric mean over tasks of the share of the limit of an author's best evaluation.
const sharesByAuthor = (data) => {
  const best = new Map();
  for (const run of data.runs) {
    if (!run.share || run.disputed) continue;
    const author = JSON.stringify([run.author, data.mixed ? run.timed : ""]);
    if (!best.has(author)) best.set(author, new Map());
    const task = JSON.stringify([run.definition, run.uuid, run.device]), mine = best.get(author);
    mine.set(task, Math.max(mine.get(task) ?? 0, run.share));
  }
  return new Map([...best].map(([author, mine]) => [author, geometricMean([...mine.values()])]));
};

const authorColumns = (data) => {
  const at = Object.keys(data.authors[0].fast);
  return [
    { name: "Rank", numeric: true, value: (a) => Number(a.rank.replace("=", "")), show: (a) => a.rank,
      help: "By the share of tasks solved faster than the reference, then by the speed-up; shared if the 95% intervals overlap" },
    { name: "Author", value: (a) => a.name, class: "name", show: (a) => linkTo(hrefOf("solutions", [], { author: a.name }), a.name) },
    ...(data.mixed ? [{ name: "Timed by", value: (a) => a.timed, wide: true }] : []),
    { name: "Solved", numeric: true, value: (a) => a.solved / a.tasks, show: (a) => `${a.solved}/${a.tasks}`, descending: true,
      help: "Solved tasks of all tasks; a task is a workload of a definition on a device",
        csv: [["solved", (a) => a.solved], ["tasks", (a) => a.tasks]] },
    { name: "Definitions", numeric: true, wide: true, value: (a) => a.definitions, descending: true },
    { name: "Speed-up", numeric: true, value: (a) => a.speedup, descending: true,
      show: (a) => figureWith(`${ratio(a.speedup)}${plusMinus(a.speedup, a.interval)}`, a), tip: (a) => a.interval && range(a.interval, ratio),
      help: "Over the reference: geometric mean over the solved tasks", csv: endsCsv("speedup", (a) => a.speedup, (a) => a.interval) },
    ...limitColumn(data, (a) => a.share, null,
      "Share of the device’s limit: geometric mean over the tasks with a known limit, for the best solution of each"),
    ...at.map((p) => ({ name: `fast_${Number(p)}`, numeric: true, wide: true, value: (a) => a.fast[p], show: (a) => percent(a.fast[p]),
      descending: true, help: `Share of all tasks that were solved more than ${Number(p)} times as fast as the reference` })),
    { name: "Fastest", numeric: true, value: (a) => a.first, descending: true, wide: true, help: "Tasks in which this author is the fastest" },
  ];
};

const leaderColumns = (data) => [
  { name: "Definition", value: (s) => s.definition, show: (s) => definitionLink(s.definition), class: "name" },
  { name: "Rank", numeric: true, value: rankOf, show: (s) => s.rank, help: "By latency; shared if the 95% intervals overlap" },
  { name: "Solution", value: (s) => s.solution, class: "name", show: (s) => solutionLink(s.solution) },
  { name: "Author", value: (s) => s.author, wide: true, show: (s) => linkTo(hrefOf("solutions", [], { author: s.author }), s.author) },
  ...deviceColumn(data, (s) => s.hardware),
  ...(data.mixed ? [{ name: "Timed by", value: (s) => s.timed, wide: true }] : []),
  { name: "Latency", numeric: true, value: (s) => s.mean_latency_ms, show: (s) => figureWith(scoreLatency(s), s), tip: scoreTip,
    help: "Geometric mean over the workloads, with its 95% interval",
    csv: [...endsCsv("geomean_ms", (s) => s.mean_latency_ms, (s) => s.interval_ms), marksCsv] },
  { name: "Speed-up", numeric: true, value: (s) => s.speedup, show: (s) => ratio(s.speedup), descending: true, wide: true,
    help: "Over the reference: geometric mean over the workloads" },
  ...limitColumn(data, (s) => s.share, null, "Share of the device’s limit: geometric mean over the workloads"),
  { name: "Workloads", numeric: true, value: (s) => s.passed, wide: true, help: "Workloads that passed" },
];

const leaderboardView = (data, route) => {
  const shares = sharesByAuthor(data);
  const authors = data.authors.map((one) => ({ ...one, tied: one.speedup !== null && one.rank.startsWith("="),
    share: shares.get(JSON.stringify([one.name, one.timed.replace(", unknown cache mode", "").replace(", ", " ")])) ?? null }));
  const leaders = data.scores.filter((score) => score.rank && rankOf(score) <= RANKS);
  const overall = authors.length
    ? [make("h3", {}, "Overall"), new Table({ label: "authors", noun: "author", columns: authorColumns(data), rows: authors, route,
      prefix: "a." }).element] : [];
  return [overall,
    make("h3", {}, "By definition"),
    make("p", { class: "note" }, leaders.length
      ? `The first ${RANKS} ranks of each definition. Only solutions that passed on every workload, without disputed latencies, are ranked.`
      : "No solution passed on all of its workloads."),
    leaders.length ? new Table({ label: "leaders", noun: "row", columns: leaderColumns(data), rows: leaders, route,
      choices: [{ name: "Type", value: (s) => s.type }, { name: "Definition", value: (s) => s.definition },
        { name: "Device", value: (s) => s.hardware }] }).element : null,
    make("div", { class: "pair charts" }, fastpFigure(Object.entries(data.curves), "author"),
      statusesFigure(data.runs, (run) => run.author, "Statuses by author")),
  ];
};
