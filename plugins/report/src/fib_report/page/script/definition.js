// The view of one definition: how its solutions compare on one device.

const neighbours = (data, name) => {
  const names = [...data.byDefinition.keys()];
  const here = names.indexOf(name);
  const link = (other, text) => other && make("a", { href: hrefOf("definition", other), title: other }, text);
  return make("nav", { class: "neighbours", "aria-label": "Definitions" },
    link(names[here - 1], "‹ previous"), make("a", { href: hrefOf("definitions") }, "all definitions"), link(names[here + 1], "next ›"));
};

const definitionCurves = (runs, scores) => {
  const countable = runs.filter((run) => !run.passed || run.speedup !== null);
  const tasks = new Set(countable.map((run) => run.uuid)).size;
  if (!tasks) return [];
  const byName = grouped(countable, (run) => run.solution);
  return scores.filter((score) => byName.has(score.solution)).map((score) => {
    const speedups = byName.get(score.solution).filter((run) => run.speedup !== null).map((run) => run.speedup);
    return [score.solution, curveOf(speedups, tasks)];
  });
};

// Everything about a definition on one device.
const onDevice = (data, name, [device, timed], route) => {
  const runs = data.byDefinition.get(name).filter((run) => run.device === device && (!run.passed || run.timed === timed));
  const scores = data.scoresByDefinition.get(name).filter((score) => score.hardware === device && score.timed === timed);
  const failed = runs.filter((run) => !run.passed).length;
  const shorts = new Map(runs.map((run) => [run.solution, run.short]));
  const curves = () => fastpFigure(definitionCurves(runs, scores), "solution", (solution) => shorts.get(solution));
  const drawn = runs.some((run) => run.passed)
    ? make("div", { class: "pair" }, scatterFigure(runs, scores), rooflineFigure(runs, scores), curves(),
      statusesFigure(runs, (run) => run.solution, "Statuses by solution"))
    : make("p", { class: "note" }, "No solution passed, so there are no plots.");
  const here = { ...data, several: false, mixed: false, ...knownOf(runs) };
  return [
    make("p", { class: "note" }, [device, runs.some((run) => run.passed) && timed !== timedLabel("", "") && `timed by ${timed}`,
      counted(scores.length, "solution"),
      counted(new Set(runs.map((run) => run.uuid)).size, "workload"), counted(runs.length, "evaluation"), `${failed} failed`]
        .filter(Boolean).join(" · ")),
    make("h3", {}, "Solutions"),
    new Table({ label: "solutions", noun: "solution", columns: scoreColumns(here, false), rows: scores, route, prefix: "s." }).element,
    drawn, runs.some((run) => run.shape >= 0) && stripsFigure(data, runs, scores),
    make("h3", {}, "Workloads"), workloadsTable(here, runs, route, "w.", false),
    make("h3", {}, "Evaluations"),
    new Table({ label: "evaluations", noun: "evaluation", rows: runs, route, choices: [runChoices[0], { name: "Solution", value: (r) => r.solution }],
      columns: runColumns(here, "status solution workload latency rates speedup samples time") }).element,
  ];
};

const definitionView = (data, route) => {
  const [name] = route.names;
  if (!data.byDefinition.has(name)) return unknown("definition", name);
  // Plots never mix results of different timers.
  const ways = [...grouped(data.scoresByDefinition.get(name), (score) => settingOf(score.hardware, score.timed)).values()]
    .map(([score]) => [score.hardware, score.timed]);
  const timers = new Set(ways.map(([, timed]) => timed)).size;
  const content = make("div");
  const names = ways.map(([device, timed]) => (timers > 1 ? `${device} · ${timed}` : device));
  const show = (chosen) => content.replaceChildren(
    ...onDevice(data, name, ways[Math.max(names.indexOf(chosen), 0)], route).flat().filter(Boolean));
  const pick = ways.length > 1 && make("p", { class: "controls" }, picker("Device", names.map((one) => [one, one]), (chosen) => {
    route.remember("device", chosen);
    show(chosen);
  }, route.query.get("device")));
  show(route.query.get("device"));
  return [neighbours(data, name), pick, content];
};
