"""``fib trace summary``."""

from __future__ import annotations

import json

from flashinfer_bench.data import Definition
from flashinfer_bench.tracing.store import Store


class Call:
    """A recorded call, as the store takes it."""

    def __init__(self, size):
        self.def_name, self.axes = "double", {"N": size}

    def values(self):
        return {}


def recorded(maker):
    """Two workloads by hand, three by tracing (one of them twice)."""
    maker.sound()
    text = (maker.root / "definitions/op/double.json").read_text()
    definition = Definition.model_validate_json(text)
    Store(maker.root, {"double": definition}).add([Call(64), Call(8), Call(8)])
    return maker.root


def test_a_table(fib, maker):
    recorded(maker).joinpath("workloads/op/other.jsonl").write_text("broken\n")
    result = fib("trace", "summary", "--local", maker.root)
    assert result.exit_code == 1
    header, line = (line.split("\t") for line in result.stdout.splitlines())
    assert dict(zip(header, line, strict=True)) == {
        "definition": "double",
        "workloads": "5",
        "traced": "3",
        "distinct_axes": "4",
        "blobs": "0",
        "blob_bytes": "0",
        "axes": "N 8-64",
    }
    assert "5 workloads (3 traced) of 1 definitions, 0 bytes of tensors" in result.stderr
    assert "1 lines cannot be read" in result.stderr


def test_json_and_tensor_files(fib, maker):
    maker.sound()
    path = maker.blob("blob/x.safetensors", {"x": ("F32", [16])})
    maker.from_blob("./blob/x.safetensors", uuid="b1")
    maker.from_blob("./blob/x.safetensors", uuid="b2")
    maker.from_blob("./blob/gone.safetensors", uuid="b3")
    maker.from_blob("../outside.safetensors", uuid="b4")
    document = json.loads(fib("trace", "summary", "--local", maker.root, "--json").stdout)
    [one] = document["definitions"]
    assert (one["workloads"], one["traced"]) == (6, 0)
    assert (one["blobs"], one["missing_blobs"]) == (2, 1)
    assert one["blob_bytes"] == path.stat().st_size
    assert one["axes"] == {"N": [16, 32]}
    assert one["files"] == ["workloads/op/double.jsonl"]
    assert document["unread"] == []
    assert "1 tensor files are missing" in fib("trace", "summary", "--local", maker.root).stderr


def test_workloads_in_the_folder_of_traces(fib, maker):
    """As older releases wrote them; sanitize and benchmarks see them, too."""
    maker.sound()
    source = maker.root / "workloads/op/double.jsonl"
    target = maker.root / "traces/workloads/op/double.workload.jsonl"
    target.parent.mkdir(parents=True)
    source.rename(target)
    result = fib("trace", "summary", "--local", maker.root, "--json")
    assert result.exit_code == 0
    [one] = json.loads(result.stdout)["definitions"]
    assert one["workloads"] == 2
    assert one["files"] == ["traces/workloads/op/double.workload.jsonl"]
