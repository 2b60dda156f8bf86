"""``fib doctor``."""

from __future__ import annotations

import json


def damage(maker):
    maker.sound()
    path = maker.root / "traces/op/double.jsonl"
    first = path.read_text().splitlines()[0]
    path.write_text(path.read_text() + first + "\nbroken\n" + first[:60])
    return maker.root


def test_issues_are_findings(fib, maker):
    root = damage(maker)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    result = fib("doctor", root)
    assert result.exit_code == 1
    header, *lines = (line.split("\t") for line in result.stdout.splitlines())
    assert header == ["kind", "remedy", "place", "message"]
    kinds = ["duplicate_line", "invalid_line", "torn_line"]
    assert [line[:2] for line in lines] == [[kind, "safe"] for kind in kinds]
    assert lines[0][2] == "traces/op/double.jsonl:5"
    assert "fib doctor --repair" in result.stderr
    document = json.loads(fib("doctor", root, "--json").stdout)
    assert document["clean"] is False
    assert document["repaired"] is None
    assert [one["kind"] for one in document["issues"]] == kinds
    assert document["issues"][1]["line"] == 6
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_a_repair_ends_with_0_and_so_does_the_next(fib, maker):
    root = damage(maker)
    result = fib("doctor", root, "--repair")
    assert result.exit_code == 0
    assert "moved 1 duplicate_line, 1 invalid_line, 1 torn_line to" in result.stderr
    assert len(result.stdout.splitlines()) == 4
    again = fib("doctor", root, "--repair")
    assert (again.exit_code, again.stdout) == (0, "")
    assert len(list(root.glob("doctor_backup_*"))) == 1
    assert fib("validate", "--local", root).exit_code == 0


def test_what_a_repair_leaves_is_a_finding(fib, maker):
    root = damage(maker)
    maker.solution("lost", definition="lost")
    result = fib("doctor", root, "--repair")
    assert result.exit_code == 1
    assert "remaining: orphan_solution  orphans  solutions/alice/op/lost/lost.json" in result.stderr
    assert fib("doctor", root, "--repair", "--orphans").exit_code == 0


def test_a_repair_as_json(fib, maker):
    root = damage(maker)
    done = json.loads(fib("doctor", root, "--repair", "--json").stdout)
    assert (done["clean"], done["issues"], len(done["repaired"])) == (True, [], 3)
    assert done["backup"].startswith(str(root / "doctor_backup_"))


def test_hostile_names_do_not_reach_the_terminal(fib, maker):
    maker.sound()
    maker.trace("\x1b[2J")
    assert "\x1b" not in fib("doctor", maker.root).output
