"""Pack ``sources/`` into ``sample-dataset/``, and the expected statuses into one table.

Each folder of ``sources/`` is one definition: ``definition.json`` and ``reference.py``,
``workloads.json``, ``solutions.json`` and ``solutions/``. Only the standard library is used, and
the same sources give the same bytes on every machine::

    python examples/build_sample_dataset.py          # write
    python examples/build_sample_dataset.py --check  # exit with 1 if anything is out of date

The table, ``sources/expected.json``, contains the expected status of each solution on each
workload.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import struct
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = Path(__file__).resolve().parent
DATASET = "sample-dataset"
#: Files of the dataset that this script generates; traces belong to the user.
OWNED = ("definitions", "solutions", "workloads", "blob")
#: Suffix of sources that do not parse, so that linters ignore them.
BROKEN = ".broken"
#: Allowed suffixes of the single file of a solution.
SUFFIXES = (".py", f".py{BROKEN}", ".cpp", ".cu")

Json = dict[str, Any]
#: Name, safetensors dtype, shape and little-endian bytes.
Blob = list[tuple[str, str, list[int], bytes]]


# ------------------------------------------------------------------------------------ tensors


def paged_kv(lengths: list[int], num_pages: int, seed: int) -> Blob:
    """Create a page table for sequences of the given lengths, on pages scattered over the cache."""
    indptr = [sum(lengths[:end]) for end in range(len(lengths) + 1)]
    # Only Random.random() is guaranteed to return the same numbers in all versions of Python.
    rng = random.Random(seed)
    scattered = sorted(range(num_pages), key=lambda _: rng.random())
    indices = scattered[: indptr[-1]]
    return [
        ("kv_indptr", "I32", [len(indptr)], struct.pack(f"<{len(indptr)}i", *indptr)),
        ("kv_indices", "I32", [len(indices)], struct.pack(f"<{len(indices)}i", *indices)),
    ]


def rope(spans: list[list[int]], max_seq_len: int, rotary_dim: int, theta: float) -> Blob:
    """Compute cosines and sines for each position, and the positions of spans (first, count)."""
    positions = [first + offset for first, count in spans for offset in range(count)]
    half = rotary_dim // 2
    frequencies = [theta ** (-pair / half) for pair in range(half)]
    table = [
        function(position * frequency)
        for position in range(max_seq_len)
        for function in (math.cos, math.sin)
        for frequency in frequencies
    ]
    return [
        ("positions", "I64", [len(positions)], struct.pack(f"<{len(positions)}q", *positions)),
        ("cos_sin_cache", "F32", [max_seq_len, rotary_dim], struct.pack(f"<{len(table)}f", *table)),
    ]


RECIPES: dict[str, Callable[..., Blob]] = {"paged_kv": paged_kv, "rope": rope}


def safetensors_bytes(blob: Blob) -> bytes:
    """Serialise tensors as a safetensors file: length and text of the header, then the data."""
    header: Json = {}
    offset = 0
    for name, dtype, shape, data in blob:
        end = offset + len(data)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for *_, data in blob)


# ------------------------------------------------------------------------------------ records


def read_json(path: Path) -> Any:
    """Parse one JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def pretty(record: Any) -> bytes:
    """Encode a record in readable form."""
    return (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()


def workload_uuid(definition: str, key: str) -> str:
    """Derive the uuid of a workload from its key, so that it stays the same from build to build."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"flashinfer-bench/sample/{definition}/{key}"))


def render_definition(folder: Path) -> Json:
    """Join the declaration and the source of its reference."""
    declared: Json = read_json(folder / "definition.json")
    source = (folder / "reference.py").read_text(encoding="utf-8")
    return {**declared, "reference": source}


def locate(source: Json, path: str) -> Json:
    """Add the file path to an input that is stored in a file."""
    if source["type"] != "safetensors":
        return source
    return {"type": "safetensors", "path": f"./{path}", "tensor_key": source["tensor_key"]}


def render_workload(definition: Json, spec: Json) -> tuple[bytes, dict[str, bytes]]:
    """Make one workload line, and the files that it refers to, by their path in the dataset."""
    name = definition["name"]
    key = workload_uuid(name, spec["key"])
    path = f"blob/workloads/{definition['op_type']}/{name}/{name}_{key}.safetensors"
    inputs = {tensor: locate(source, path) for tensor, source in spec["inputs"].items()}
    workload = {"uuid": key, "axes": spec["axes"], "inputs": inputs}
    trace = {"definition": name, "workload": workload, "solution": None, "evaluation": None}
    line = json.dumps(trace, ensure_ascii=False).encode() + b"\n"
    if "blob" not in spec:
        return line, {}
    arguments = dict(spec["blob"])
    blob = RECIPES[arguments.pop("recipe")](**arguments)
    return line, {path: safetensors_bytes(blob)}


def solution_sources(folder: Path, name: str) -> list[Json]:
    """Collect the source files of one solution: ``name.SUFFIX``, or a folder of that name."""
    package = folder / name
    if package.is_dir():
        listed = [path for path in package.rglob("*") if path.is_file()]
        inside = sorted(path for path in listed if "__pycache__" not in path.parts)
        files = {path.relative_to(package).as_posix(): path for path in inside}
    else:
        single = next(path for suffix in SUFFIXES if (path := folder / f"{name}{suffix}").exists())
        files = {f"main{single.name.removesuffix(BROKEN).removeprefix(name)}": single}
    return [{"path": p, "content": f.read_text(encoding="utf-8")} for p, f in files.items()]


def build_spec(spec: Json, sources: list[Json]) -> Json:
    """Return how one solution is built; the defaults are those of Python."""
    entry = next(path for source in sources if (path := source["path"]).startswith("main."))
    optional = {key: spec[key] for key in ("binding", "compile_options") if key in spec}
    return {
        "language": spec.get("language", "python"),
        "target_hardware": spec.get("target_hardware", ["cpu", "cuda"]),
        "entry_point": f"{entry}::run",
        "dependencies": spec.get("dependencies", ["torch"]),
        "destination_passing_style": spec["destination_passing_style"],
        **optional,
    }


def render_solution(definition: Json, folder: Path, spec: Json) -> Json:
    """Make one solution record."""
    sources = solution_sources(folder, spec["name"])
    return {
        "name": spec["name"],
        "definition": definition["name"],
        "author": spec["author"],
        "description": spec["description"],
        "spec": build_spec(spec, sources),
        "sources": sources,
    }


def render_expected(definition: Json, workloads: list[Json], spec: Json) -> Json:
    """Return the expected status of one solution on each workload."""
    statuses = spec["expect"]
    if isinstance(statuses, str):
        statuses = {workload["key"]: statuses for workload in workloads}
    by_uuid = {workload_uuid(definition["name"], key): value for key, value in statuses.items()}
    return {
        "definition": definition["name"],
        "role": spec["role"],
        "language": spec.get("language", "python"),
        "binding": spec.get("binding"),
        "status": by_uuid,
    }


# ------------------------------------------------------------------------------------ the whole


def render_folder(folder: Path) -> tuple[dict[str, bytes], Json]:
    """Make all files of one definition by their path in the dataset, and the expected statuses."""
    definition = render_definition(folder)
    name, op_type = definition["name"], definition["op_type"]
    files = {f"definitions/{op_type}/{name}.json": pretty(definition)}
    workloads = read_json(folder / "workloads.json")
    lines = []
    for spec in workloads:
        line, blobs = render_workload(definition, spec)
        lines.append(line)
        files.update(blobs)
    files[f"workloads/{op_type}/{name}.jsonl"] = b"".join(lines)
    expected: Json = {}
    for spec in read_json(folder / "solutions.json"):
        path = f"solutions/{spec['author']}/{op_type}/{name}/{spec['name']}.json"
        files[path] = pretty(render_solution(definition, folder / "solutions", spec))
        expected[spec["name"]] = render_expected(definition, workloads, spec)
    return files, expected


def render(examples: Path = EXAMPLES) -> dict[str, bytes]:
    """Make every generated file.

    Parameters
    ----------
    examples : Path
        The folder that holds ``sources/``.

    Returns
    -------
    dict
        Content by path relative to `examples`.
    """
    files: dict[str, bytes] = {}
    expected: Json = {}
    for declaration in sorted((examples / "sources").glob("*/definition.json")):
        made, statuses = render_folder(declaration.parent)
        files.update({f"{DATASET}/{path}": content for path, content in made.items()})
        expected.update(statuses)
    files["sources/expected.json"] = pretty(expected)
    return files


def existing(examples: Path) -> dict[str, Path]:
    """Return the existing files that this script generates."""
    roots = [examples / DATASET / folder for folder in OWNED]
    found = [path for root in roots for path in root.rglob("*") if path.is_file()]
    found += [path for path in [examples / "sources" / "expected.json"] if path.exists()]
    return {path.relative_to(examples).as_posix(): path for path in found}


def stale(examples: Path = EXAMPLES) -> list[str]:
    """List the generated files that are missing, different, or obsolete."""
    files, found = render(examples), existing(examples)
    both = files.keys() & found.keys()
    changed = {path for path in both if found[path].read_bytes() != files[path]}
    return sorted(changed | (files.keys() ^ found.keys()))


def write(examples: Path = EXAMPLES) -> list[str]:
    """Update the files on disk, and return the paths of those that changed."""
    files = render(examples)
    changed = stale(examples)
    for path in changed:
        target = examples / path
        if path in files:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(files[path])
        else:
            target.unlink()
    return changed


def main(arguments: list[str] | None = None) -> int:
    """Run as a script."""
    parser = argparse.ArgumentParser(description="Pack examples/sources into a dataset.")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if out of date")
    parser.add_argument(
        "--examples", type=Path, default=EXAMPLES, help="folder that holds sources/ (default: here)"
    )
    options = parser.parse_args(arguments)
    changed = stale(options.examples) if options.check else write(options.examples)
    for path in changed:
        print(f"{'out of date' if options.check else 'wrote'}: {path}", file=sys.stderr)
    return 1 if options.check and changed else 0


if __name__ == "__main__":
    raise SystemExit(main())
