// Two runs side by side. A run is a series of evaluations without a long pause.

const PAUSE_MS = 30 * 60_000;

// [{label, runs}], the latest first, without evaluations that have no date.
const runsApart = (all) => {
  const dated = all.map((run) => [Date.parse(`${run.time.replace(" ", "T")}Z`), run]).filter(([at]) => !Number.isNaN(at)).sort((a, b) => a[0] - b[0]);
  const found = [];
  let end = -Infinity;
  for (const [at, run] of dated) {
    if (at - end > PAUSE_MS) found.push([]);
    found[found.length - 1].push(run);
    end = at;
  }
  return found.reverse().map((runs) => ({ key: runs[0].time, label: `${runs[0].time.slice(0, 16)} (${runs.length.toLocaleString("en")})`, runs }));
};

// The latest evaluation of each task: a solution on a workload and device with one timer.
const byTask = (runs) => {
  const found = new Map();
  for (const run of runs) {
    const task = JSON.stringify([run.definition, run.solution, run.uuid, run.device]);
    if (!(found.get(task)?.time > run.time)) found.set(task, run);
  }
  return found;
};

const verdictOf = (a, b) => {
  if (!a.passed || !b.passed) return a.passed === b.passed ? "failed in both" : a.passed ? "broken" : "fixed";
  if (a.timed !== b.timed) return "other timer";
  if (a.disputed || b.disputed || !a.latency || !b.latency) return "disputed";
  return overlap(a.interval, b.interval) ? "ambiguous" : a.latency > b.latency ? "faster" : "slower";
};
const VERDICTS = ["broken", "slower", "fixed", "faster", "ambiguous", "disputed", "other timer", "failed in both"];

const compareTable = (data, before, after, route) => {
  const [first, second] = [byTask(before.runs), byTask(after.runs)];
  const rows = [...second].filter(([task]) => first.has(task)).map(([task, b]) => {
    const a = first.get(task), verdict = verdictOf(a, b);
    const timed = a.latency && b.latency && verdict !== "other timer";
    return { ...b, a, b, verdict, change: timed ? b.latency / a.latency : null };
  }).sort((x, y) => VERDICTS.indexOf(x.verdict) - VERDICTS.indexOf(y.verdict)
    || Math.abs(Math.log(y.change ?? 1)) - Math.abs(Math.log(x.change ?? 1)));
  const counts = VERDICTS.map((one) => [one, rows.filter((row) => row.verdict === one).length]).filter(([, count]) => count);
  const side = (name, pick) => ({ name, numeric: true, value: (r) => pick(r).latency,
    csv: [[`${slug(name)}_ms`, (r) => pick(r).latency], [`${slug(name)}_status`, (r) => pick(r).status]],
    show: (r) => figureWith(evaluationLink(pick(r), pick(r).passed ? latencyText(pick(r)) : statusLabel(pick(r).status)), pick(r)) });
  const columns = [
    { name: "Verdict", value: (r) => r.verdict, show: (r) => make("span", { class: `verdict ${slug(r.verdict)}` }, r.verdict) },
    ...runColumns(data, "definition solution workload device"),
    side("Before", (r) => r.a), side("After", (r) => r.b),
    { name: "After / before", numeric: true, value: (r) => r.change, show: (r) => ratio(r.change), wide: true,
      help: "Ratio of the latencies: less than 1 is faster" },
  ];
  const lone = (some, others) => [...some.keys()].filter((task) => !others.has(task)).length;
  return [make("p", { class: "note" }, [...counts.map(([one, count]) => `${count.toLocaleString("en")} ${one}`),
    `only before: ${lone(first, second).toLocaleString("en")}`, `only after: ${lone(second, first).toLocaleString("en")}`].join(" · ")),
  new Table({ label: "comparison", noun: "task", rows, columns, route,
    choices: [{ name: "Verdict", value: (r) => r.verdict }, { name: "Author", value: (r) => r.author },
    { name: "Device", value: (r) => r.device }] }).element];
};

const compareView = (data, route) => {
  const runs = runsApart(data.all);
  if (runs.length < 2) return make("p", { class: "note" }, "There is only one run, so there is nothing to compare.");
  const chosen = { before: runs.find((one) => one.key === route.query.get("before")) ?? runs[1],
    after: runs.find((one) => one.key === route.query.get("after")) ?? runs[0] };
  const content = make("div");
  const show = () => content.replaceChildren(...compareTable(data, chosen.before, chosen.after, route));
  const pick = (side, name) => picker(name, runs.map((one) => [one.key, one.label]), (key) => {
    chosen[side] = runs.find((one) => one.key === key);
    route.remember(side, key);
    show();
  }, chosen[side].key);
  show();
  return [make("p", { class: "note" }, "Evaluations less than half an hour apart belong to the same run. Slower and faster: the 95% intervals do not overlap; otherwise ambiguous. Use ‘fib compare’ to measure such differences."),
    make("p", { class: "controls" }, pick("before", "Before"), pick("after", "After")), content];
};
