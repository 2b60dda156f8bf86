"""``fib export``, ``fib import``, ``fib solution`` and what ``fib report merge`` can do."""

from __future__ import annotations

import io
import json
import os
import tarfile

import pytest


@pytest.fixture
def sound(maker):
    """A dataset with a workload of a tensor file."""
    maker.sound()
    maker.blob("blob/workloads/op/double/x.safetensors", {"x": ("F32", [16])})
    maker.from_blob("./blob/workloads/op/double/x.safetensors", uuid="w3")
    return maker


def test_there_and_back(fib, sound, tmp_path):
    archive, new = tmp_path / "a.tar.gz", tmp_path / "new"
    result = fib("export", sound.root, "-o", archive)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{archive}\n"
    assert "exported 1 definitions, 2 solutions, 3 workloads, 4 traces, 1 blobs" in result.stderr
    result = fib("import", archive, "--into", new)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{new}\n"
    assert "imported 1 definitions, 2 solutions, 3 workloads, 4 traces, 1 blobs" in result.stderr
    checked = fib("validate", new, "--strict")
    assert checked.exit_code == 0, checked.stdout
    result = fib("import", archive, "-o", new)
    assert result.exit_code == 0
    assert "imported nothing; 10 already existed" in result.stderr


def test_a_part_as_json(fib, sound, tmp_path):
    sound.definition("other", op_type="misc")
    sound.solution("o", "other")
    archive = tmp_path / "a.tar"
    args = ("--definitions", "double", "other", "--solutions", "alice_double", "--no-traces")
    result = fib("export", sound.root, "--output", archive, *args, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == {
        "schema_version": 1,
        "archive": str(archive),
        "definitions": 1,
        "solutions": 1,
        "workloads": 3,
        "traces": 0,
        "blobs": 1,
        "missing_blobs": [],
        "lfs_pointers": [],
        "left_out": [],
    }
    result = fib("import", archive, "-o", tmp_path / "new", "--json")
    document = json.loads(result.stdout)
    assert document["added"]["workloads"] == 3
    assert document["left_out"] == document["notes"] == document["missing_blobs"] == []


def test_what_is_left_out_ends_with_1(fib, sound, tmp_path):
    sound.raw("traces/bad.jsonl", '{"x": 1}\n' * 12)
    result = fib("export", sound.root, "-o", tmp_path / "a.tgz")
    assert result.exit_code == 1
    assert "left out: " in result.stderr
    assert "and 2 more" in result.stderr
    result = fib("import", sound.root, "-o", tmp_path / "new", "--json")
    assert result.exit_code == 1
    errors = json.loads(result.stdout)["left_out"]
    assert [error["line"] for error in errors] == list(range(1, 13))
    assert errors[0]["path"].endswith("bad.jsonl")


def test_an_archive_that_is_too_large_is_refused(fib, tmp_path):
    new = tmp_path / "new"
    bomb = tmp_path / "bomb.tgz"
    with tarfile.open(bomb, "w:gz") as tar:
        info = tarfile.TarInfo("zeros")
        info.size = 4 << 20
        tar.addfile(info, io.BytesIO(bytes(info.size)))
    result = fib("import", bomb, "-o", new, "--max-gib", "0.001")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "unpacks to more than" in result.stderr
    assert not new.exists()


# -------------------------------------------------------------------------------------- merge


@pytest.fixture
def second(tmp_path, maker):
    """A second dataset, with another definition and results from another device."""
    other = type(maker)(tmp_path / "second")
    other.definition("triple", op_type="gemm")
    other.solution("bob_triple", definition="triple", author="bob")
    other.workload("triple", uuid="w1", op_type="gemm")
    other.trace("bob_triple", definition="triple", hardware="NVIDIA H200", latency_ms=4.0)
    return other


def test_merge(fib, sound, second, tmp_path):
    out = tmp_path / "merged"
    result = fib("report", "merge", "--local", sound.root, second.root, "--output", out)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{out}\n"
    assert "merged 2 datasets: 2 definitions, 3 solutions, 4 workloads, 5 traces" in result.stderr
    assert (out / "blob/workloads/op/double/x.safetensors").is_file()
    checked = fib("validate", "--local", out)
    assert checked.exit_code == 0, checked.stdout
    args = ["--local", sound.root, "--local", second.root]  # without writing them as one
    summary = json.loads(fib("report", "summary", "--json", *args).stdout)
    assert [one["definition"] for one in summary["definitions"]] == ["double", "triple"]


def test_what_cannot_be_merged(fib, maker, second, tmp_path):
    root, out = maker.sound().root, tmp_path / "merged"
    second.definition("double", reference="def run(x):\n    return x * 3\n")
    result = fib("report", "merge", "--local", root, second.root, "--output", out)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "different definitions named 'double'" in result.stderr
    assert "reference" in result.stderr
    assert not out.exists()


# ------------------------------------------------------------------------------------- solution


def test_a_solution_there_and_back(fib, sound, tmp_path):
    file = next(sound.root.glob("solutions/alice/**/*.json"))
    folder, out = tmp_path / "folder", tmp_path / "out.json"
    result = fib("solution", "unpack", file, "-o", folder)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{folder}\n"
    assert "alice_double: 1 source" in result.stderr
    (folder / "sources/new.py").write_text("x = 1\n")
    result = fib("solution", "pack", folder, "-o", out, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == {
        "schema_version": 1,
        "path": str(out),
        "name": "alice_double",
        "definition": "double",
        "sources": ["main.py", "new.py"],
        "added": ["new.py"],
    }
    assert "added new file new.py" in result.stderr
    assert json.loads(out.read_text())["sources"][0] == json.loads(file.read_text())["sources"][0]


def test_the_commands_need_neither_torch_nor_numpy(fib_process, sound, tmp_path):
    for name in ("torch", "numpy", "safetensors"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not here')\n")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    archive = tmp_path / "a.tar.gz"
    for args in (
        ("export", sound.root, "-o", archive),
        ("import", archive, "-o", tmp_path / "new"),
        ("report", "merge", "--local", sound.root, tmp_path / "new", "-o", tmp_path / "merged"),
        ("sanitize", sound.root),
    ):
        done = fib_process(*args, env={"PYTHONPATH": paths, "FIB_ENABLE_TRACING": "1"})
        assert done.returncode == 0, done.stderr
