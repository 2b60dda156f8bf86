"""Write a dataset of any size, for measuring: ``python generate_dataset.py OUT --traces 100000``.

The content is made up but has the shape of real datasets: paged-attention-like definitions with
variable axes, constraints and tensor files in their workloads, several authors, logs of 1 KB and
a few failures. The same arguments give the same files.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import struct
import uuid
from pathlib import Path
from typing import Any

OP_TYPES = ("gemm", "rmsnorm", "gqa_paged", "mla_paged", "moe", "sampling")
AUTHORS = ("baseline", "alice", "bob", "model-a", "model-b", "model-c", "model-d", "model-e")
DEVICES = ("NVIDIA H200", "NVIDIA B200")
REFERENCE = "def run(x, kv_indptr, kv_indices, sm_scale):\n    return x * sm_scale\n"
LOG_LINE = "[12:34:56] warmup 10, iterations 50: all outputs within tolerance of the reference\n"


def definition(index: int) -> dict[str, Any]:
    """Return definition number `index`."""
    return {
        "name": f"definition_{index:03d}",
        "op_type": OP_TYPES[index % len(OP_TYPES)],
        "description": "A made-up computation over paged values.",
        "tags": ["status:generated"],
        "axes": {
            "batch_size": {"type": "var"},
            "num_pages": {"type": "var"},
            "len_indptr": {"type": "var"},
            "heads": {"type": "const", "value": 8 + index},
            "head_dim": {"type": "const", "value": 128},
        },
        "constraints": ["len_indptr == batch_size + 1"],
        "inputs": {
            "x": {"shape": ["batch_size", "heads", "head_dim"], "dtype": "bfloat16"},
            "kv_indptr": {"shape": ["len_indptr"], "dtype": "int32"},
            "kv_indices": {"shape": ["num_pages"], "dtype": "int32"},
            "sm_scale": {"shape": None, "dtype": "float32"},
        },
        "outputs": {"y": {"shape": ["batch_size", "heads", "head_dim"], "dtype": "bfloat16"}},
        "reference": REFERENCE,
    }


def solution(definition_name: str, index: int) -> dict[str, Any]:
    """Return solution number `index` of a definition; number 0 is the baseline."""
    author = AUTHORS[0] if index == 0 else AUTHORS[1 + (index - 1) % (len(AUTHORS) - 1)]
    return {
        "name": f"{author}_{definition_name}_{index}",
        "definition": definition_name,
        "author": author,
        "spec": {
            "language": "python",
            "target_hardware": list(DEVICES),
            "entry_point": "main.py::run",
            "dependencies": ["torch"],
            "destination_passing_style": False,
        },
        "sources": [{"path": "main.py", "content": REFERENCE * 8}],
    }


def workload(one: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a random workload of a definition."""
    batch = rng.choice((1, 2, 4, 8, 16, 32, 64, 128, 256)) + rng.randrange(4)
    identity = str(uuid.UUID(int=rng.getrandbits(128), version=4))
    path = f"./blob/workloads/{one['op_type']}/{one['name']}/{one['name']}_{identity}.safetensors"
    blob = {"type": "safetensors", "path": path}
    return {
        "uuid": identity,
        "axes": {"batch_size": batch, "num_pages": rng.randrange(1, 1000), "len_indptr": batch + 1},
        "inputs": {
            "x": {"type": "random"},
            "kv_indptr": {**blob, "tensor_key": "kv_indptr"},
            "kv_indices": {**blob, "tensor_key": "kv_indices"},
            "sm_scale": {"type": "scalar", "value": 0.08838834764831843},
        },
    }


def evaluation(rng: random.Random, speed: float, log_bytes: int) -> dict[str, Any]:
    """Return a random result; about one in fifty failed."""
    failed = rng.random() < 0.02
    reference_ms = 0.05 + rng.random()
    latency_ms = reference_ms / (speed * (0.9 + 0.2 * rng.random()))
    result: dict[str, Any] = {
        "status": "RUNTIME_ERROR" if failed else "PASSED",
        "environment": {
            "hardware": rng.choice(DEVICES),
            "libs": {"torch": "2.13.0", "triton": "3.7.1", "cuda": "13.0"},
        },
        "timestamp": f"2026-0{rng.randrange(1, 10)}-11T10:{rng.randrange(10, 60)}:12.345678",
        "log": f"{rng.random():.4f} {LOG_LINE * (log_bytes // len(LOG_LINE) + 1)}"[:log_bytes],
    }
    if not failed:
        result["correctness"] = {
            "max_relative_error": rng.random() * 2e-2,
            "max_absolute_error": rng.random() * 1.2e-2,
            "extra": None,
        }
        result["performance"] = {
            "latency_ms": latency_ms,
            "reference_latency_ms": reference_ms,
            "speedup_factor": reference_ms / latency_ms,
        }
    return result


def timed(result: dict[str, Any], count: int, seed: int) -> dict[str, Any]:
    """Add samples of a latency, what follows from them, and how they were taken."""
    times = result.get("performance")
    if not times or not count:
        return result
    rng = random.Random(seed)  # of its own: without samples everything else is the same
    middle = times["latency_ms"]
    taken = [middle * rng.lognormvariate(0, 0.03) for _ in range(count)]
    reach = 0.04 / count**0.5
    times |= {
        "samples_ms": "f32:" + base64.b64encode(struct.pack(f"<{count}f", *taken)).decode(),
        "interval_ms": [middle * (1 - reach), middle * (1 + reach)],
        "speedup_interval": [times["speedup_factor"] * factor for factor in (0.99, 1.01)],
        "outliers": 0,
    }
    clocks = {"sm_mhz": [1755, rng.randrange(1800, 1980), 1980], "temperature_c": [38, 41, 44]}
    timing = {"cache": "cold", "reference": "beside", "watched": {"nvml": clocks}}
    return {**result, "provenance": {"timer": "cupti", "stop_rule": "rse", "timing": timing}}


def generate(
    out: Path, *, traces: int, definitions: int = 60, solutions: int = 10, workloads: int = 20,
    log_bytes: int = 1024, seed: int = 0, samples: int = 0,
) -> Path:  # fmt: skip
    """Write a dataset.

    Parameters
    ----------
    out : Path
        Folder to write to; files there are overwritten.
    traces : int
        Traces in all, spread evenly.
    definitions : int
        Definitions in all.
    solutions, workloads : int
        Number per definition.
    log_bytes : int
        Length of each trace's log.
    seed : int
        Seed of everything random.
    samples : int
        Samples in each trace that passed, with intervals and how they were taken; 0 for none, as
        traces of older releases are.

    Returns
    -------
    Path
        `out`.
    """
    rng = random.Random(seed)
    for index in range(definitions):
        one = definition(index)
        group = f"{one['op_type']}/{one['name']}"
        made = [solution(one["name"], number) for number in range(solutions)]
        problems = [workload(one, rng) for _ in range(workloads)]
        _write(out / f"definitions/{group}.json", json.dumps(one, indent=2))
        for item in made:
            file = out / f"solutions/{item['author']}/{group}/{item['name']}.json"
            _write(file, json.dumps(item, indent=2))
        records = (_trace(one["name"], problem) for problem in problems)
        _write(out / f"workloads/{group}.jsonl", "".join(records))
        for problem in problems:
            _write_blob(out, problem)
        share = traces // definitions + (index < traces % definitions)
        lines = [
            _trace(
                one["name"],
                problems[number // solutions % workloads],
                made[number % solutions]["name"],
                timed(evaluation(rng, 1.0 + number % solutions / 4, log_bytes), samples, number),
            )
            for number in range(share)
        ]
        _write(out / f"traces/{group}.jsonl", "".join(lines))
    return out


def _write_blob(out: Path, problem: dict[str, Any]) -> None:
    """Write the tensor file of a workload: zeros of the declared shapes, in safetensors' layout."""
    header: dict[str, Any] = {}
    end = 0
    for key, axis in (("kv_indptr", "len_indptr"), ("kv_indices", "num_pages")):
        size = problem["axes"][axis]
        header[key] = {"dtype": "I32", "shape": [size], "data_offsets": [end, end + 4 * size]}
        end += 4 * size
    text = json.dumps(header).encode()
    path = out / problem["inputs"]["kv_indptr"]["path"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def _trace(definition_name: str, problem: Any, name: str | None = None, result: Any = None) -> str:
    record = {"definition": definition_name, "workload": problem, "solution": name}
    return json.dumps({**record, "evaluation": result}) + "\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def main() -> None:
    """Parse the command line and write the dataset."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--traces", type=int, default=1200)
    parser.add_argument("--definitions", type=int, default=60)
    parser.add_argument("--log-bytes", type=int, default=1024)
    parser.add_argument("--samples", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    generate(
        given.out,
        traces=given.traces,
        definitions=given.definitions,
        log_bytes=given.log_bytes,
        seed=given.seed,
        samples=given.samples,
    )
    print(json.dumps({"path": str(given.out), "traces": given.traces}))


if __name__ == "__main__":
    main()
