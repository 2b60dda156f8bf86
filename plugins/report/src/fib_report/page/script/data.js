// Unpacking the data of the page.

const unpack = async (id) => {
  const letters = atob(document.getElementById(id).textContent);
  const bytes = new Uint8Array(letters.length);
  for (let index = 0; index < letters.length; index++) bytes[index] = letters.charCodeAt(index);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
};

// JSON has no infinities and no NaN.
const number = (value) => {
  if (typeof value !== "string") return value;
  return value === "nan" ? NaN : value === "-inf" ? -Infinity : Infinity;
};

// Latencies can be compared if these are the same; failures have no timer.
const timedLabel = (timer, cache) => [timer || "unknown timer", cache].filter(Boolean).join(" ");

// The points of a distribution in milliseconds, from steps between the smallest and the largest.
const POINT_LEVELS = 255;
const pointsOf = (text) => {
  const [steps, ...ends] = text.split(" ");
  const [low, high] = ends.map(Number);
  let level = 0;
  return [...steps].map((letter) => {
    level += letter.charCodeAt(0) - 48;
    const share = level / POINT_LEVELS;
    return low > 0 && high / low < 1e300 ? low * (high / low) ** share : low + (high - low) * share;
  });
};

const makeRun = (data, index) => {
  const columns = data.runs;
  const [place, name, short, author, language] = data.solutions[columns.solution[index]];
  const [definition, type] = data.definitions[place];
  const [, uuid, label, order, axes, work] = data.workloads[columns.workload[index]];
  const [bytes, operations, basis] = work ?? [0, 0, ""];
  const latency = columns.latency[index], reference = columns.reference[index], limit = columns.limit[index];
  const [timer, cache, rule, referenceTimed] = data.clocks[columns.clock[index]];
  const passed = columns.status[index] === "PASSED";
  return {
    index, definition, type, solution: name, short, author, language, uuid, label, order, axes, passed, basis,
    device: data.devices[columns.device[index]], place: columns.solution[index], isOld: index >= data.latest,
    status: columns.status[index], cause: data.causes[columns.cause[index]] ?? "",
    time: columns.time[index].replace("T", " "),
    latency, reference, speedup: latency && reference ? reference / latency : null,
    bytes, operations, limit, bound: columns.bound[index], share: limit && latency ? limit / latency : null,
    gbps: bytes && latency ? bytes / latency / 1e6 : null, tflops: operations && latency ? operations / latency / 1e9 : null,
    low: columns.low[index], high: columns.high[index], samples: columns.samples[index], dropped: columns.dropped[index],
    disputed: columns.disputed[index], replayable: passed && columns.replayable[index], loose: passed && columns.loose[index],
    interval: columns.interval[index], speedupInterval: columns.speedup[index],
    timer, cache, rule, referenceTimed, timed: timedLabel(timer, cache),
    shape: columns.shape[index], gone: columns.gone[index], timing: columns.timing[index], setting: columns.setting[index],
    absolute: number(columns.absolute[index]), relative: number(columns.relative[index]),
    log: columns.log[index], length: columns.length[index],
  };
};

const grouped = (items, key) => {
  const groups = new Map();
  for (const item of items) {
    const name = key(item);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(item);
  }
  return groups;
};

const geometricMean = (values) => (values.length && values.every((value) => value > 0)
  ? Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length) : null);

// Latencies can only be compared where these are the same.
const settingOf = (device, timed) => JSON.stringify([device, timed]);

// An element of the page that is unpacked when first needed.
const lazily = (id, change = (found) => found) => {
  let found = null;
  return () => { found ??= unpack(id).then(change); return found; };
};

// Share of the limit of a solution over all its workloads; null unless all are known.
const meanShare = (runs) => {
  const passed = runs.filter((run) => run.passed);
  return passed.every((run) => run.share) ? geometricMean(passed.map((run) => run.share)) : null;
};

// Which columns have values.
const knownOf = (runs) => ({ hasShares: runs.some((run) => run.share), hasBytes: runs.some((run) => run.gbps),
  hasOperations: runs.some((run) => run.tflops) });

const readData = async () => {
  const data = await unpack("data");
  const all = data.runs.status.map((_, index) => makeRun(data, index));
  const runs = all.slice(0, data.latest);
  const bySolution = grouped(all, (run) => run.solution);
  const scores = data.scores.map((score) => {
    const timed = timedLabel(score.timer, score.cache);
    const [definition, type] = data.definitions[score.definition];
    const mine = bySolution.get(score.solution).filter((run) => !run.isOld && run.definition === definition
      && run.device === score.hardware && (!run.passed || run.timed === timed));
    const [mean_latency_ms, interval_ms] = score.latency ?? [null, null];
    const [speedup, speedup_interval] = score.speedup ?? [null, null];
    return { ...score, mean_latency_ms, interval_ms, speedup, speedup_interval, definition, type, timed, share: meanShare(mine), tied: score.rank?.startsWith("=") ?? false,
      max_absolute_error: number(score.max_absolute_error) };
  });
  const [logs, timings, settings, sources] = ["logs", "timings", "settings", "sources"].map((id) => lazily(id));
  const textAt = async (texts, place) => (place < 0 ? null : (await texts())[place]);
  const passed = runs.filter((run) => run.passed);
  const authors = data.authors.map((one) => ({ ...one, speedup: one.speedup?.[0] ?? null, interval: one.speedup?.[1] ?? null }));
  return { ...data, runs, all, scores, authors, bySolution, sources,
    byDefinition: grouped(runs, (run) => run.definition), scoresByDefinition: grouped(scores, (score) => score.definition),
    log: (run) => textAt(logs, run.log), timing: (run) => textAt(timings, run.timing), settings: (run) => textAt(settings, run.setting),
    drawable: lazily("shapes", (found) => found.map(pointsOf)),
    several: data.devices.length > 1, mixed: new Set(passed.map((run) => run.timed)).size > 1,
    ...knownOf(runs) };
};
