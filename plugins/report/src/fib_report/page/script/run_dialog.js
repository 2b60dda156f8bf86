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
  ["Disputed", run.disputed ? "its judge doubts the latency, so it is not ranked: see the log" : ""],
  ["Replayable", run.passed && run.replayable ? "a call could be answered from memory, as all have the same inputs or results" : ""],
  ["Loose tolerance", run.passed && run.loose ? "right within 0.01, but not within what suits the dtypes (--tolerance dtype)" : ""],
  ["95 % interval", run.interval ? `${range(run.interval, duration)} (${plusMinus(run.latency, run.interval).trim()})` : ""],
  ["Middle half", run.samples ? `${duration(run.low)} – ${duration(run.high)} (${run.samples} samples)` : ""],
  ["Dropped samples", run.dropped ? `${run.dropped} of ${run.samples}: the device was slowed down` : ""],
  ["Timer", run.passed ? run.timed : ""], ["Stop rule", run.rule],
  ["Reference timed", run.passed ? run.referenceTimed : ""],
  ["Reference", duration(run.reference)], ["Speed-up", ratio(run.speedup)],
  ["95 % interval of it", run.speedupInterval ? range(run.speedupInterval, ratio) : ""],
  ["Max. absolute error", small(run.absolute)], ["Max. relative error", small(run.relative)],
]);

// The distribution of its samples, and what was seen of the machine meanwhile.
const showTiming = async (data, run, place) => {
  const [shapes, lines] = [await data.drawable(), await data.timing(run)];
  const room = Math.max(260, Math.min(place.clientWidth, 800));
  if (run.shape >= 0) place.append(make("h3", {}, "Samples"), drawStrips([run], shapes, () => "c1", room, () => {}));
  if (lines) place.append(make("h3", {}, "Timing"), make("pre", { tabindex: "0", "aria-label": "Timing" }, lines));
};

const openRun = async (data, run) => {
  const dialog = document.getElementById("run");
  const log = make("pre", { tabindex: "0", dir: "auto", "aria-label": "Log" }, "…");
  const close = make("button", { type: "button", onclick: () => dialog.close() }, "Close");
  const title = make("h2", { id: "run-title" }, make("span", { class: `mark ${statusClass(run.status)}` }), breakable(run.solution));
  const timing = make("div");
  dialog.replaceChildren(make("header", {}, title, close), describe(run), timing, make("h3", {}, "Log"), log);
  dialog.showModal();
  close.focus();
  log.replaceChildren(clean(await logText(data, run)));
  await showTiming(data, run, timing);
};

const dismissByClick = () => {
  const dialog = document.getElementById("run");
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
};
