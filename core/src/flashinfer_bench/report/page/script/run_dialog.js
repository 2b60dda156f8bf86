// One evaluation with its log, over the page.

const facts = (pairs) => make("dl", {}, pairs
  .filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== "–")
  .map(([name, value]) => [make("dt", {}, name), make("dd", {}, make("bdi", {}, value))]));

const logText = async (data, run) => {
  if (!run.length) return "(no log was recorded)";
  const size = run.length.toLocaleString("en");
  const text = await data.log(run);
  return text ?? `(a log of ${size} characters, left out to keep this page small; it is in the dataset)`;
};

const describe = (run) => facts([
  ["Outcome", statusLabel(run.status)], ["Definition", run.definition], ["Author", run.author],
  ["Language", run.language], ["Device", run.device], ["Time", run.time],
  ["Workload", run.uuid],
  ["Axes", Object.entries(run.axes).map(([name, value]) => `${name}=${value}`).join(" ")],
  ["Latency", duration(run.latency)],
  ["Middle half", run.samples ? `${duration(run.low)} – ${duration(run.high)} (${run.samples} samples)` : ""],
  ["Reference", duration(run.reference)], ["Speed-up", ratio(run.speedup)],
  ["Max. absolute error", small(run.absolute)], ["Max. relative error", small(run.relative)],
]);

const openRun = async (data, run) => {
  const dialog = document.getElementById("run");
  const log = make("pre", { tabindex: "0", dir: "auto", "aria-label": "Log" }, "…");
  const close = make("button", { type: "button", onclick: () => dialog.close() }, "Close");
  const title = make("h2", { id: "run-title" }, make("span", { class: `mark ${statusClass(run.status)}` }), breakable(run.solution));
  dialog.replaceChildren(make("header", {}, title, close), describe(run), make("h3", {}, "Log"), log);
  dialog.showModal();
  close.focus();
  log.replaceChildren(clean(await logText(data, run)));
};

const dismissByClick = () => {
  const dialog = document.getElementById("run");
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
};
