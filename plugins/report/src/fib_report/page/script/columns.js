// Links, marks and columns that several views share.

const hrefOf = (view, names = [], query = {}) => {
  const words = new URLSearchParams(query).toString();
  const path = [view, ...[names].flat()].map((part) => encodeURIComponent(part)).join("/");
  return `#/${path}${words ? `?${words}` : ""}`;
};
const go = (href) => { location.hash = href; };
const linkTo = (href, text) => make("a", { href }, text instanceof Node ? text : breakable(text));
const definitionLink = (name) => linkTo(hrefOf("definition", name), name);
const solutionLink = (name, text = name) => linkTo(hrefOf("solution", name), text);
const workloadLink = (run) => linkTo(hrefOf("workload", [run.definition, run.uuid]), run.label);
const evaluationHref = (run) => hrefOf("evaluation", [run.solution, run.uuid], { time: run.time, device: run.device });
const evaluationLink = (run, text) => linkTo(evaluationHref(run), make("span", {}, text));
const openRun = (run) => go(evaluationHref(run));

const statusMark = (status, text) => make("span", { class: "status" }, make("span", { class: `mark ${statusClass(status)}` }), text);

const DOUBTS = {
  disputed: "the judge measured a longer time than the worker’s timer, so this latency is not ranked",
  tied: "95% intervals overlap, so it is not known which is faster",
  replayable: "all calls have the same inputs or results, which a solution could remember",
  loose: "passed within 0.01, would fail with --tolerance dtype",
};

// The marks next to a number: [[name, why], …].
const marksOf = (one) => Object.entries(DOUBTS).filter(([name]) => one[name])
  .map(([name, why]) => [name === "loose" ? "loose tolerance" : name, why]);
const partOf = (one, name) => (typeof one === "number" && name > 1 ? ` on ${one} of ${name}` : "");
const marks = (one) => marksOf(one).map(([name, why]) => {
  const count = one[name.split(" ")[0]];
  return [" ", make("span", { class: `tag ${name.split(" ")[0]}`, "data-tip": `${name}${partOf(count, one.workloads)}: ${why}` }, name)];
});

// A figure with its interval and its marks.
const figureWith = (text, one) => make("span", {}, text, marks(one));
const latencyText = (run) => duration(run.latency) + plusMinus(run.latency, run.interval);
const scoreLatency = (score) => (score ? duration(score.mean_latency_ms) + plusMinus(score.mean_latency_ms, score.interval_ms) : "–");

const deviceColumn = (data, value) => (data.several ? [{ name: "Device", value, wide: true }] : []);
const rankOf = (score) => (score.rank ? Number(score.rank.replace("=", "")) : null);
const marksCsv = ["marks", (one) => marksOf(one).map(([name]) => name).join(" ")];
const endsCsv = (name, value, ends) => [[name, value], [`${name}_low`, (one) => ends(one)?.[0]], [`${name}_high`, (one) => ends(one)?.[1]]];

const limitColumn = (data, value, tip, help) => (data.hasShares
  ? [{ name: "Of limit", numeric: true, value, show: (one) => limitShare(value(one)), tip, descending: true, help,
    csv: [["share_of_limit", value]] }] : []);

// "≥" if only a part of the bytes is known.
const atLeast = (run, text) => `${run.basis === "some sizes" ? "≥ " : ""}${text}`;
const bandwidthText = (run) => (run?.gbps ? atLeast(run, digits(run.gbps)) : "–");

const rateColumns = (data) => [
  ...limitColumn(data, (r) => r.share, (r) => r.share && `limit ${duration(r.limit)}, ${BOUNDS[r.bound]}`,
    "The shortest possible time on this device, according to ‘fib calibrate’, over the latency. Above 100% the calibration is too low"),
  ...(data.hasBytes ? [{ name: "GB/s", numeric: true, wide: true, value: (r) => r.gbps, descending: true, help: "Bytes to move over the latency",
    show: (r) => bandwidthText(r), tip: (r) => r.gbps && `${scaled(r.bytes, "B")}. ${BASES[r.basis]}` }] : []),
  ...(data.hasOperations ? [{ name: "TFLOP/s", numeric: true, wide: true, value: (r) => r.tflops, descending: true,
    help: "Operations over the latency",
    show: (r) => (r.tflops ? digits(r.tflops) : "–"), tip: (r) => r.operations && scaled(r.operations, " operations") }] : []),
];

const scoreStatus = (score) => {
  const worst = Object.keys(score.statuses).pop() ?? "";
  return [worst, score.passed && score.passed < score.workloads ? `${score.workloads - score.passed} failed` : statusLabel(worst)];
};

const scoreTip = (score) => score && rowsOf([
  score.interval_ms && `geometric mean: ${duration(score.mean_latency_ms)}, 95% interval ${range(score.interval_ms, duration)}`,
  score.without_interval ? `no interval on ${score.without_interval} of ${score.passed} workloads` : "",
  score.dropped ? `${score.dropped} of ${score.samples} samples dropped` : "",
  score.references.before ? `reference timed separately on ${score.references.before} workloads` : "",
]);

const scoreColumns = (data, withDefinition) => [
  ...(withDefinition ? [{ name: "Definition", value: (s) => s.definition, show: (s) => definitionLink(s.definition), class: "name",
    wide: withDefinition === "wide" }] : []),
  { name: "Solution", value: (s) => s.solution, class: "name",
    show: (s) => make("span", {}, solutionLink(s.solution), s.best && " ", s.best && make("span", { class: "badge" }, "best")) },
  { name: "Author", value: (s) => s.author, wide: true },
  { name: "Language", value: (s) => s.language, wide: true },
  ...deviceColumn(data, (s) => s.hardware),
  ...(data.mixed ? [{ name: "Timed by", value: (s) => s.timed, wide: true }] : []),
  { name: "Rank", numeric: true, value: rankOf, show: (s) => s.rank ?? "–",
    help: "By latency, for solutions that passed everywhere; shared if the 95% intervals overlap" },
  { name: "Status", value: (s) => scoreStatus(s)[1], show: (s) => statusMark(...scoreStatus(s)), wide: true,
    tip: (s) => Object.entries(s.statuses).map(([name, count]) => `${statusLabel(name)}: ${count}`).join("\n") },
  { name: "Passed", numeric: true, value: (s) => s.passed, show: (s) => `${s.passed}/${s.workloads}`, descending: true, wide: true },
  { name: "Latency", numeric: true, value: (s) => s.mean_latency_ms, show: (s) => figureWith(scoreLatency(s), s), tip: scoreTip,
    help: "Geometric mean over the workloads that passed, with its 95% interval",
    csv: [...endsCsv("geomean_ms", (s) => s.mean_latency_ms, (s) => s.interval_ms), marksCsv] },
  ...limitColumn(data, (s) => s.share, null, "Share of the device’s limit: geometric mean over the workloads that passed"),
  { name: "Speed-up", numeric: true, value: (s) => s.speedup, show: (s) => ratio(s.speedup), descending: true,
    help: "Over the reference: geometric mean over the workloads that passed", csv: endsCsv("speedup", (s) => s.speedup, (s) => s.speedup_interval) },
  { name: "Range", numeric: true, wide: true, value: (s) => s.min_speedup,
    show: (s) => (s.min_speedup === null ? "–" : `${ratio(s.min_speedup)} – ${ratio(s.max_speedup)}`),
    help: "Smallest and largest speed-up", csv: [["min_speedup", (s) => s.min_speedup], ["max_speedup", (s) => s.max_speedup]] },
  { name: "Max. error", numeric: true, wide: true, value: (s) => s.max_absolute_error, show: (s) => small(s.max_absolute_error),
    help: "Largest absolute error" },
];

const samplesText = (run) => {
  if (!run.samples) return "–";
  const count = run.samples.toLocaleString("en");
  return run.dropped ? `${count} (−${run.dropped.toLocaleString("en")})` : count;
};

const RUN_COLUMNS = {
  status: () => [{ name: "Status", value: (r) => r.status, search: (r) => `${statusLabel(r.status)} ${r.status}`, class: "result",
    show: (r) => linkTo(evaluationHref(r), statusMark(r.status, statusLabel(r.status))) }],
  definition: () => [{ name: "Definition", value: (r) => r.definition, show: (r) => definitionLink(r.definition), class: "name", wide: true }],
  solution: () => [{ name: "Solution", value: (r) => r.solution, show: (r) => solutionLink(r.solution), class: "name" }],
  workload: () => [{ name: "Workload", value: (r) => r.label, class: "load", search: (r) => `${r.label} ${r.uuid}`, tip: (r) => r.uuid,
    show: workloadLink, csv: [["workload", (r) => r.label], ["uuid", (r) => r.uuid]] }],
  device: (data) => deviceColumn(data, (r) => r.device),
  latency: () => [{ name: "Latency", numeric: true, value: (r) => r.latency, show: (r) => figureWith(latencyText(r), r),
    tip: (r) => r.interval && range(r.interval, duration),
    help: "Median of the samples, with its 95% interval", csv: [...endsCsv("latency_ms", (r) => r.latency, (r) => r.interval), marksCsv] }],
  rates: rateColumns,
  samples: () => [{ name: "Samples", numeric: true, wide: true, value: (r) => r.samples, descending: true, show: samplesText,
    help: "Timed calls; in brackets the dropped ones, during which the device was throttled or busy", tip: (r) => r.rule }],
  speedup: () => [{ name: "Speed-up", numeric: true, wide: true, value: (r) => r.speedup, descending: true,
    tip: (r) => r.speedupInterval && range(r.speedupInterval, ratio),
    show: (r) => `${ratio(r.speedup)}${plusMinus(r.speedup, r.speedupInterval)}`, help: "Over the reference, with its 95% interval",
    csv: endsCsv("speedup", (r) => r.speedup, (r) => r.speedupInterval) }],
  timed: (data) => (data.mixed ? [{ name: "Timed by", value: (r) => (r.passed ? r.timed : ""), wide: true }] : []),
  cause: () => [{ name: "Cause", value: (r) => r.cause, class: "cause" }],
  time: () => [{ name: "Time", value: (r) => r.time, class: "time", wide: true, csv: [["time", (r) => r.time]] }],
};
const runColumns = (data, names) => names.split(" ").flatMap((name) => RUN_COLUMNS[name](data));

const runChoices = [
  { name: "Status", value: (r) => r.status, label: (status) => statusLabel(status) },
  { name: "Author", value: (r) => r.author },
  { name: "Device", value: (r) => r.device },
];
