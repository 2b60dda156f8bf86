"""``fib report``."""

from __future__ import annotations

import base64
import json
import re
import zlib

import pytest


def rows(text):
    """Read tab-separated values into dictionaries, one list for each table."""
    tables = []
    for block in text.strip("\n").split("\n\n"):
        header, *lines = (line.split("\t") for line in block.split("\n"))
        tables.append([dict(zip(header, line, strict=True)) for line in lines])
    return tables


@pytest.fixture
def second(tmp_path, maker):
    """A second dataset, with another definition and results from another device."""
    other = type(maker)(tmp_path / "second")
    other.definition("triple", op_type="gemm")
    other.solution("bob_triple", definition="triple", author="bob")
    other.workload("triple", uuid="w1", op_type="gemm")
    other.trace("bob_triple", definition="triple", hardware="NVIDIA H200", latency_ms=4.0)
    return other


# ------------------------------------------------------------------------------------ summary


def test_summary(fib, maker):
    result = fib("report", "summary", "--local", maker.sound().root)
    assert result.exit_code == 0
    definitions, ranking, timings = rows(result.stdout)
    assert [one["runs"] for one in timings] == ["4"]
    assert definitions == [
        {
            "definition": "double",
            "op_type": "op",
            "solutions": "2",
            "workloads": "2",
            "traces": "4",
            "passed": "4",
            "failed": "0",
        }
    ]
    assert ranking == [
        {
            "hardware": "Test CPU",
            "timer": "",
            "cache": "",
            "author": "alice",
            "speedup": "4",
            "definitions": "1",
            "workloads": "2",
        }
    ]
    assert "total: 1 definitions, 2 solutions, 2 workloads, 4 traces" in result.stderr


def test_summary_as_json_is_one_document(fib, maker):
    result = fib("report", "summary", "--json", "--local", maker.sound().root)
    document = json.loads(result.stdout)
    assert document["schema_version"] == 1
    assert document["totals"]["traces"] == 4
    assert document["statuses"] == {"PASSED": 4}
    assert document["definitions"][0]["definition"] == "double"
    assert document["rankings"][0]["author"] == "alice"
    assert document["unreadable"] == []


def test_no_author_baseline_is_no_error(fib, maker):
    maker.definition()
    maker.solution()
    maker.workload()
    maker.trace()
    result = fib("report", "summary", "--local", maker.root)
    assert result.exit_code == 0
    assert [len(table) for table in rows(result.stdout)] == [1, 1]  # definitions, timings
    assert "not in the ranking: 1 definitions" in result.stderr
    assert "--baseline-author" in result.stderr


def test_another_baseline(fib, maker):
    root = maker.sound().root
    result = fib("report", "summary", "--local", root, "--baseline-author", "alice")
    assert rows(result.stdout)[1][0]["author"] == "baseline"
    assert rows(result.stdout)[1][0]["speedup"] == "0.25"


@pytest.mark.parametrize("flags", [["--local"], ["--local", "--local"]])
def test_several_datasets_are_taken_together(fib, maker, second, flags):
    roots = [maker.sound().root, second.root]
    args = [*flags[:1], roots[0], *flags[1:], roots[1]]
    definitions = rows(fib("report", "summary", *args).stdout)[0]
    assert [one["definition"] for one in definitions] == ["double", "triple"]


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (["--definition", "triple"], ["triple"]),
        (["--definitions", "triple", "double"], ["double", "triple"]),
        (["--op-type", "gemm"], ["triple"]),
        (["--definitions", "triple", "--op-type", "op"], None),
    ],
)
def test_filters(fib, maker, second, filters, names):
    result = fib("report", "summary", "--local", maker.sound().root, second.root, *filters)
    if names is None:
        assert result.exit_code == 5
        assert result.stdout == ""
    else:
        assert [one["definition"] for one in rows(result.stdout)[0]] == names


def test_the_default_dataset(fib, maker, monkeypatch):
    monkeypatch.setenv("FIB_DATASET_PATH", str(maker.sound().root))
    assert fib("report", "summary").exit_code == 0


def test_a_dataset_without_traces(fib, maker):
    maker.definition()
    result = fib("report", "summary", "--local", maker.root)
    assert result.exit_code == 0
    assert rows(result.stdout)[0][0]["traces"] == "0"


# --------------------------------------------------------------------------------------- best


def test_best(fib, maker, second):
    result = fib("report", "best", "--local", maker.sound().root, second.root)
    assert result.exit_code == 0
    (found,) = rows(result.stdout)
    assert [(one["definition"], one["hardware"], one["solution"]) for one in found] == [
        ("double", "Test CPU", "alice_double"),
        ("triple", "NVIDIA H200", "bob_triple"),
    ]
    assert found[0]["geomean_ms"] == "0.5"
    assert found[0]["lead"] == "4"
    assert found[1]["lead"] == ""


def test_best_as_json(fib, maker):
    result = fib("report", "best", "--json", "--local", maker.sound().root)
    (best,) = json.loads(result.stdout)["best"]
    assert (best["solution"], best["runner_up"], best["language"]) == (
        "alice_double",
        "baseline_double",
        "python",
    )


def test_best_of_chosen_authors(fib, maker):
    result = fib("report", "best", "--local", maker.sound().root, "--author", "baseline")
    assert rows(result.stdout)[0][0]["solution"] == "baseline_double"


def test_nobody_is_best(fib, maker):
    maker.definition()
    maker.solution()
    maker.trace(status="TIMEOUT")
    result = fib("report", "best", "--local", maker.root)
    assert result.exit_code == 0
    assert rows(result.stdout) == [[]]
    assert "no solution passed" in result.stderr


def test_best_without_traces_selects_nothing(fib, maker):
    maker.definition()
    result = fib("report", "best", "--local", maker.root)
    assert result.exit_code == 5
    assert "fib run" in result.stderr


# -------------------------------------------------------------------------------------- merge


def test_merge(fib, maker, second, tmp_path):
    maker.sound()
    maker.blob("blob/workloads/op/double/x.safetensors", {"x": ("F32", [16])})
    maker.from_blob("./blob/workloads/op/double/x.safetensors", uuid="w3")
    out = tmp_path / "merged"
    result = fib("report", "merge", "--local", maker.root, second.root, "--output", out)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{out}\n"
    assert "merged 2 datasets: 2 definitions, 3 solutions, 4 workloads, 5 traces" in result.stderr
    assert (out / "blob/workloads/op/double/x.safetensors").is_file()
    checked = fib("validate", "--local", out)
    assert checked.exit_code == 0, checked.stdout


def test_merging_a_dataset_with_itself_changes_nothing(fib, maker, tmp_path):
    root = maker.sound().root
    out = tmp_path / "merged"
    fib("report", "merge", "--local", root, root, "-o", out)
    before, after = (
        fib("report", "summary", "--json", "--local", one).stdout for one in (root, out)
    )
    assert json.loads(before)["definitions"] == json.loads(after)["definitions"]


def test_a_conflict_is_told_and_nothing_written(fib, maker, second, tmp_path):
    maker.sound()
    second.definition("double", reference="def run(x):\n    return x * 3\n")
    out = tmp_path / "merged"
    result = fib("report", "merge", "--local", maker.root, second.root, "--output", out)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "different definitions named 'double'" in result.stderr
    assert "reference" in result.stderr
    assert not out.exists()


def test_merge_needs_datasets_and_an_output(fib, maker, tmp_path):
    assert fib("report", "merge", "--output", tmp_path / "x").exit_code == 2
    assert fib("report", "merge", "--local", maker.sound().root).exit_code == 2


def test_merge_does_not_write_into_its_source(fib, maker):
    root = maker.sound().root
    result = fib("report", "merge", "--local", root, "--output", root / "merged")
    assert result.exit_code == 2
    assert not (root / "merged").exists()


def test_merge_does_not_write_over_anything(fib, maker, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("mine")
    result = fib("report", "merge", "--local", maker.sound().root, "-o", tmp_path / "full")
    assert result.exit_code == 4
    assert (tmp_path / "full/file").read_text() == "mine"


# ---------------------------------------------------------------------------------- visualize


def carried(page):
    """Return the data of a page as text."""
    packed = re.search(r'id="data">([^<]*)<', page)[1]
    return zlib.decompress(base64.b64decode(packed)).decode()


def test_visualize(fib, maker, tmp_path):
    page = tmp_path / "deep/page.html"
    result = fib("report", "visualize", "--local", maker.sound().root, "--output", page)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{page}\n"
    assert "4 evaluations" in result.stderr
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "alice_double" in carried(text)


def test_the_title_and_filters_of_a_page(fib, maker, tmp_path):
    page = tmp_path / "page.html"
    root = maker.sound().root
    fib("report", "visualize", "--local", root, "-o", page, "--title", "<T>", "--author", "alice")
    text = page.read_text()
    assert "<title>&lt;T&gt;</title>" in text
    assert "alice_double" in carried(text)
    assert "baseline_double" not in carried(text)


def test_a_page_replaces_the_one_before_as_a_whole(fib, maker, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("old" * 100_000)
    fib("report", "visualize", "--local", maker.sound().root, "-o", page)
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert list(tmp_path.glob("*.html*")) == [page]


def test_no_page_without_results(fib, maker, tmp_path):
    maker.definition()
    result = fib("report", "visualize", "--local", maker.root, "-o", tmp_path / "page.html")
    assert result.exit_code == 5
    assert not (tmp_path / "page.html").exists()


def test_reports_need_no_torch(fib_process, maker, tmp_path):
    (tmp_path / "block").mkdir()
    for name in ("torch", "numpy"):
        (tmp_path / f"block/{name}.py").write_text("raise ImportError('blocked by the test')")
    env = {"PYTHONPATH": str(tmp_path / "block")}
    root = maker.sound().root
    for args in (
        ["summary"],
        ["best", "--json"],
        ["visualize", "--output", tmp_path / "page.html"],
        ["merge", "--output", tmp_path / "merged"],
    ):
        done = fib_process("report", *args, "--local", root, env=env)
        assert done.returncode == 0, done.stderr
    assert fib_process("validate", "--local", root, env=env).returncode == 0
