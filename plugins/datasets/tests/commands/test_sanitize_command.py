"""``fib sanitize``."""

from __future__ import annotations

import json


def dirty(maker):
    maker.sound()
    maker.workload(uuid="again", axes={"N": 16})
    maker.workload(uuid="zero", axes={"N": 0})
    maker.workload(uuid="large", axes={"N": 10_000})
    return maker.root


def test_what_is_taken_out(fib, maker):
    root = dirty(maker)
    result = fib("sanitize", "--local", root, "--max-bytes", 50_000)
    assert result.exit_code == 0
    header, *lines = (line.split("\t") for line in result.stdout.splitlines())
    assert header == ["reason", "definition", "workload", "place", "message"]
    assert [line[:3] for line in lines] == [
        ["duplicate", "double", "again"],
        ["zero_axis", "double", "zero"],
        ["outsized", "double", "large"],
    ]
    assert "moved 1 duplicate, 1 zero_axis, 1 outsized of 5 workloads to" in result.stderr
    assert len(list(root.glob("sanitize_backup_*"))) == 1
    assert fib("sanitize", "--local", root).stdout == ""
    assert fib("validate", "--local", root).exit_code == 0


def test_a_dry_run_and_json(fib, maker, monkeypatch):
    root = dirty(maker)
    monkeypatch.setenv("FIB_DATASET_PATH", str(root))
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    result = fib("sanitize", "--dry-run")
    assert result.exit_code == 1
    assert "would move 1 duplicate, 1 zero_axis of 5 workloads" in result.stderr
    document = json.loads(fib("sanitize", "--dry-run", "--json").stdout)
    assert (document["schema_version"], document["dry_run"], document["workloads"]) == (1, True, 5)
    assert [one["kind"] for one in document["dropped"]] == ["duplicate", "zero_axis"]
    assert document["dropped"][0]["path"] == "workloads/op/double.jsonl"
    assert document["kept"] == document["unread"] == document["errors"] == []
    assert document["backup"] is None
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    done = json.loads(fib("sanitize", "--json").stdout)
    assert done["backup"].startswith(str(root / "sanitize_backup_"))


def test_what_stays_for_its_traces(fib, maker):
    maker.sound()
    maker.workload(uuid="zero", axes={"N": 0})
    maker.trace("alice_double", uuid="zero")
    kept = fib("sanitize", "--local", maker.root)
    assert (kept.exit_code, kept.stdout) == (0, "")
    assert "N = 0; 1 traces refer to it" in kept.stderr
    assert "--with-traces" in kept.stderr
    gone = fib("sanitize", "--local", maker.root, "--with-traces")
    assert [line.split("\t")[0] for line in gone.stdout.splitlines()[1:]] == ["zero_axis", "trace"]


def test_what_cannot_be_read_is_a_finding(fib, maker):
    maker.sound()
    maker.raw("workloads/op/other.jsonl", "broken\n")
    maker.raw("definitions/op/bad.json", "{")
    result = fib("sanitize", "--local", maker.root)
    assert result.exit_code == 1
    assert "error: workloads/op/other.jsonl:1" in result.stderr
    assert "definitions/op/bad.json" in result.stderr
