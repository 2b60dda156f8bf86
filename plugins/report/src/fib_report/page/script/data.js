// Unpacking what the page carries.

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

// What has to be the same for latencies to be compared; failures have no timer.
const timedLabel = (timer, cache) => [timer || "unknown timer", cache].filter(Boolean).join(" ");

// The points of a distribution in milliseconds: steps of levels between the least and the greatest.
const POINT_LEVELS = 255;
const pointsOf = ([low, high, steps]) => {
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
  const [, uuid, label, order, axes] = data.workloads[columns.workload[index]];
  const latency = columns.latency[index], reference = columns.reference[index];
  const [timer, cache, rule, referenceTimed] = data.clocks[columns.clock[index]];
  return {
    index, definition, type, solution: name, short, author, language, uuid, label, order, axes,
    device: data.devices[columns.device[index]],
    status: columns.status[index], passed: columns.status[index] === "PASSED",
    cause: data.causes[columns.cause[index]] ?? "",
    time: columns.time[index].replace("T", " "),
    latency, reference, speedup: latency && reference ? reference / latency : null,
    low: columns.low[index], high: columns.high[index], samples: columns.samples[index],
    dropped: columns.dropped[index], disputed: columns.disputed[index], replayable: columns.replayable[index], loose: columns.loose[index], interval: columns.interval[index], speedupInterval: columns.speedup[index],
    timer, cache, rule, referenceTimed, timed: timedLabel(timer, cache),
    shape: columns.shape[index], gone: columns.gone[index], timing: columns.timing[index],
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

const readData = async () => {
  const data = await unpack("data");
  const runs = data.runs.status.map((_, index) => makeRun(data, index));
  const scores = data.scores.map((score) => ({
    ...score,
    definition: data.definitions[score.definition][0],
    type: data.definitions[score.definition][1],
    timed: timedLabel(score.timer, score.cache),
    max_absolute_error: number(score.max_absolute_error),
  }));
  const byDefinition = grouped(runs, (run) => run.definition);
  const scoresByDefinition = grouped(scores, (score) => score.definition);
  let logs = null;
  // The logs are the heaviest part and few are ever read: unpacked when the first is asked for.
  const log = async (run) => {
    logs ??= unpack("logs");
    return run.log < 0 ? null : (await logs)[run.log];
  };
  let shapes = null, timings = null;
  const drawable = async () => { shapes ??= (await unpack("shapes")).map(pointsOf); return shapes; };
  const timing = async (run) => {
    timings ??= unpack("timings");
    return run.timing < 0 ? "" : (await timings)[run.timing];
  };
  const ways = new Set(runs.filter((run) => run.passed).map((run) => run.timed));
  return { ...data, runs, scores, byDefinition, scoresByDefinition, log, drawable, timing,
    several: data.devices.length > 1, mixed: ways.size > 1 };
};
