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
const onDevice = (data, name, device, open) => {
  const runs = data.byDefinition.get(name).filter((run) => run.device === device);
  const scores = data.scoresByDefinition.get(name).filter((score) => score.hardware === device);
  const failed = runs.filter((run) => !run.passed).length;
  const shorts = new Map(runs.map((run) => [run.solution, run.short]));
  const curves = () => fastpFigure(definitionCurves(runs, scores), "solution", (solution) => shorts.get(solution));
  const drawn = runs.some((run) => run.passed)
    ? make("div", { class: "pair" }, scatterFigure(runs, scores, open), curves())
    : make("p", { class: "note" }, "No solution passed, so there is nothing to draw.");
  return [
    make("p", { class: "note" }, [device, counted(scores.length, "solution"),
      counted(new Set(runs.map((run) => run.uuid)).size, "workload"), counted(runs.length, "evaluation"), `${failed} failed`].join(" · ")),
    drawn, make("h3", {}, "Solutions"),
    new Table({ label: "solutions", noun: "solution", columns: scoreColumns({ several: false }, false), rows: scores }).element,
    make("h3", {}, "Evaluations"),
    new Table({ label: "evaluations", noun: "evaluation", columns: runColumns({ several: false }, open, false), rows: runs,
      choices: [...runChoices(data).slice(0, 1), { name: "Solution", value: (r) => r.solution }] }).element,
  ];
};

const definitionView = (data, open, route) => {
  const name = route.name;
  if (!data.byDefinition.has(name)) {
    return make("p", { class: "note" }, "There is no definition of this name here: ", make("bdi", {}, name));
  }
  const devices = [...new Set(data.byDefinition.get(name).map((run) => run.device))];
  const content = make("div");
  const show = (device) => content.replaceChildren(...onDevice(data, name, device, open).flat().filter(Boolean));
  const pick = devices.length > 1 ? make("p", { class: "controls" },
    picker("Device", devices.map((device) => [device, device]), show)) : null;
  show(devices[0]);
  return [neighbours(data, name), pick, content];
};
