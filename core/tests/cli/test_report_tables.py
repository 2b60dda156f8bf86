"""``fib report``: formats of tables, scores, coverage and regressions."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashinfer_bench.cli.report_common import Format, write_tables

COMMANDS = [
    ["summary"],
    ["best"],
    ["scores"],
    ["coverage"],
    ["regressions", "--since", "2026-01-15"],
]


@pytest.fixture
def root(maker):
    """Two solutions on two workloads; one became slower and one broke."""
    maker.sound()
    late = {"axes": {"N": 16}, "timestamp": "2026-02-01T00:00:00"}
    maker.trace("alice_double", uuid="w1", latency_ms=0.8, **late)
    maker.trace("baseline_double", uuid="w1", status="RUNTIME_ERROR", log="boom", **late)
    return maker.root


def table_of(fib, *args):
    result = fib("report", *args, "--format", "csv")
    return result.exit_code, list(csv.DictReader(io.StringIO(result.stdout.split("\n\n")[0])))


# ------------------------------------------------------------------------------------ formats


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one[0])
def test_every_format_has_the_same_rows(fib, root, command):
    shown = {
        form: fib("report", *command, "--local", root, "--format", form).stdout.split("\n\n")
        for form in ("table", "csv")
    }
    drawn = [line.split("\t") for line in shown["table"][0].splitlines()]
    read = list(csv.reader(io.StringIO(shown["csv"][0])))
    assert drawn[0] == read[0]
    assert len(drawn) == len(read) >= 2
    markdown = fib("report", *command, "--local", root, "--format", "markdown").stdout
    block = markdown.split("\n\n")[1].splitlines()
    assert markdown.startswith("### ")
    assert len(block) == len(read) + 1
    # Programs have further columns: both ends of an interval, which people read as ±.
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block}) == 1
    assert len(re.findall(r"(?<!\\)\|", block[0])) <= len(read[0]) + 1


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one[0])
def test_json_is_short_for_its_format(fib, root, command):
    texts = [
        fib("report", *command, "--local", root, *flags).stdout
        for flags in (["--json"], ["--format", "json"], ["--format", "JSON"])
    ]
    documents = [json.loads(text) for text in texts]
    assert documents[0] == documents[1] == documents[2]
    assert documents[0]["schema_version"] == 1


def test_an_unknown_format_is_refused(fib, root):
    result = fib("report", "best", "--local", root, "--format", "xml")
    assert result.exit_code == 2
    assert "markdown" in result.stderr


def test_csv_has_every_digit_and_no_units(fib, root):
    _, best = table_of(fib, "best", "--local", root)
    assert float(best[0]["geomean_ms"]) == pytest.approx((0.8 * 0.5) ** 0.5, rel=1e-12)


def written(capsys, form, columns, rows):
    capsys.readouterr()
    write_tables(form, [("a *title*", columns, rows)], dict)
    return capsys.readouterr().out


FORMULAS = st.builds("{}{}".format, st.sampled_from("=+-@\t\r'"), st.text(max_size=6))
CELLS = FORMULAS | st.text(max_size=12) | st.none() | st.integers() | st.floats() | st.booleans()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(CELLS, CELLS), max_size=5))
def test_any_cells_come_back_from_csv(capsys, rows):
    read = list(csv.reader(io.StringIO(written(capsys, Format.csv, ("a", "b"), rows))))
    assert read[0] == ["a", "b"]
    assert [len(line) for line in read[1:]] == [2] * len(rows)
    for row, line in zip(rows, read[1:], strict=True):
        for value, cell in zip(row, line, strict=True):
            if isinstance(value, str) and value.isprintable():
                assert cell in (value, f"'{value}")
                assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
            elif isinstance(value, float) and value - value == 0:
                assert float(cell) == value


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(CELLS, CELLS), max_size=5))
def test_any_cells_stay_within_their_columns_of_markdown(capsys, rows):
    text = written(capsys, Format.markdown, ("a", "b"), rows)
    lines = text.split("\n")
    assert lines[0] == r"### a \*title\*"
    assert len(lines) == 2 + 2 + len(rows) + 1
    for line in lines[2:-1]:
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3
        assert "<" not in line


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("gqa_paged_h32", "gqa_paged_h32"),
        ("_private_", r"\_private\_"),
        ("<b>&", "&lt;b&gt;&amp;"),
        ("a|b\\|c", r"a\|b\\\|c"),
        ("[x](y) `z` *w* ~v~", r"\[x\](y) \`z\` \*w\* \~v\~"),
        ("line\nbreak\x1b", r"line\\nbreak\\x1b"),
    ],
)
def test_markdown_shows_names_as_they_are(capsys, name, shown):
    text = written(capsys, Format.markdown, ("name",), [(name,)])
    assert text.split("\n")[4] == f"| {shown} |"


# ------------------------------------------------------------------------------------- scores


def test_scores_of_authors(fib, maker):
    code, (alice, baseline) = table_of(fib, "scores", "--local", maker.sound().root)
    assert code == 0
    assert alice["author"] == "alice"
    assert float(alice["score"]) == float(alice["mean"]) == 4.0
    assert (alice["fast_1"], alice["win_2"], alice["fastest"]) == ("1.0", "1.0", "2")
    assert (baseline["score"], baseline["geomean"], baseline["fast_1"]) == ("", "1.0", "0.0")


def test_scores_at_chosen_speedups(fib, maker):
    root = maker.sound().root
    _, (alice, _) = table_of(fib, "scores", "--local", root, "--p", "3", "8", "--by-solution")
    assert alice["solution"] == "alice_double"
    assert [alice[name] for name in ("fast_3", "fast_8", "win_3", "win_8")] == [
        "1.0", "0.0", "1.0", "0.0",
    ]  # fmt: skip
    assert "fast_1" not in alice


def test_scores_over_the_reference(fib, maker):
    result = fib("report", "scores", "--local", maker.sound().root, "--reference", "--json")
    document = json.loads(result.stdout)
    assert document["baseline_author"] is None
    assert [one["geomean"] for one in document["scores"]] == [pytest.approx(4.0), 1.0]
    assert "over the reference" in result.stderr


def test_scores_refuse_nonsense(fib, maker):
    root = maker.sound().root
    assert fib("report", "scores", "--local", root, "--p", "-1").exit_code == 2
    assert fib("report", "scores", "--local", root, "--hardware", "none").exit_code == 5


# ----------------------------------------------------------------------------------- coverage


def test_coverage(fib, maker):
    maker.sound()
    maker.definition("triple")
    code, rows = table_of(fib, "coverage", "--local", maker.root)
    assert code == 0
    assert [(row["definition"], row["Test CPU"], row["lacking"]) for row in rows] == [
        ("double", "4", ""),
        ("triple", "0", "no workloads; no solutions"),
    ]


def test_only_gaps_and_their_exit_code(fib, maker):
    root = maker.sound().root
    result = fib("report", "coverage", "--local", root, "--gaps", "--strict")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 1
    maker.definition("triple")
    result = fib("report", "coverage", "--local", root, "--gaps", "--strict", "--json")
    assert result.exit_code == 1
    (one,) = json.loads(result.stdout)["definitions"]
    assert one["missing"] == ["no workloads", "no solutions"]
    assert "1 of 2 definitions lack something" in result.stderr
    none = fib("report", "coverage", "--local", root, "--definition", "double", "--op-type", "x")
    assert none.exit_code == 2


# -------------------------------------------------------------------------------- regressions


def test_regressions_are_findings(fib, root):
    code, rows = table_of(fib, "regressions", "--local", root, "--since", "2026-01-15")
    assert code == 1
    assert [(row["change"], row["solution"], row["after_status"]) for row in rows] == [
        ("broken", "baseline_double", "RUNTIME_ERROR"),
        ("slower", "alice_double", "PASSED"),
    ]
    assert float(rows[1]["ratio"]) == pytest.approx(1.6)


def test_no_regression_before_or_under_the_threshold(fib, root):
    def run(*args):
        return fib("report", "regressions", "--local", root, *args)

    before = run("--since", "2026-01-15", "--until", "2026-01-20")
    assert (before.exit_code, len(before.stdout.splitlines())) == (0, 1)
    alice = ["--since", "2026-01-15", "--author", "alice"]
    assert run(*alice, "--threshold", "2").exit_code == 0
    assert run(*alice).exit_code == 1


def test_improvements_are_shown_when_asked_for(fib, maker):
    maker.sound()
    maker.trace("alice_double", latency_ms=0.1, timestamp="2026-02-01T00:00:00")
    args = ("report", "regressions", "--local", maker.root, "--since", "2026-01-15")
    result = fib(*args)
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 1)
    assert "1 faster" in result.stderr
    assert "faster\tdouble\talice_double" in fib(*args, "--improvements").stdout


@pytest.mark.parametrize(
    "args",
    [[], ["--since", "soon"], ["--since", "2026-02-01", "--until", "2026-01-01"],
     ["--since", "1d", "--threshold", "1"]],
)  # fmt: skip
def test_regressions_refuse_nonsense(fib, root, args):
    assert fib("report", "regressions", "--local", root, *args).exit_code == 2


def test_reports_need_no_torch_either(fib_process, root, tmp_path):
    (tmp_path / "block").mkdir()
    for name in ("torch", "numpy"):
        (tmp_path / f"block/{name}.py").write_text("raise ImportError('blocked by the test')")
    for command in COMMANDS[2:]:
        env = {"PYTHONPATH": f"{tmp_path / 'block'}:{_path()}"}
        done = fib_process("report", *command, "--local", root, env=env)
        assert done.returncode in (0, 1), done.stderr


def _path():
    import flashinfer_bench

    return flashinfer_bench.__path__[0].rsplit("/", 1)[0]


def test_a_page_tells_of_gaps_unless_it_is_about_some_authors(fib, maker, tmp_path):
    root = maker.sound().root
    page = tmp_path / "page.html"
    fib("report", "visualize", "--local", root, "-o", page)
    assert 'data-view="coverage"' in page.read_text()
    fib("report", "visualize", "--local", root, "-o", page, "--author", "alice")
    assert 'data-view="coverage"' not in page.read_text()


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ('=HYPERLINK("http://x","y")', '\'=HYPERLINK("http://x","y")'),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("+1", "'+1"),
        ("-kernel", "'-kernel"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("'tis text", "''tis text"),
        ("a=b", "a=b"),
        (-1.5, "-1.5"),
        (-3, "-3"),
    ],
)
def test_no_cell_of_csv_is_a_formula(capsys, value, cell):
    text = written(capsys, Format.csv, (value, "b"), [(value, "x")])
    assert list(csv.reader(io.StringIO(text))) == [[cell, "b"], [cell, "x"]]


def test_a_hostile_name_does_not_become_a_formula(fib, maker):
    maker.sound()
    maker.solution("=cmd|' /C calc'!A0", author="@evil")
    result = fib("report", "coverage", "--local", maker.root, "--format", "csv")
    assert result.exit_code == 0
    maker.trace("=cmd|' /C calc'!A0")
    result = fib("report", "scores", "--local", maker.root, "--format", "csv", "--by-solution")
    cells = [cell for line in csv.reader(io.StringIO(result.stdout)) for cell in line]
    assert "'=cmd|' /C calc'!A0" in cells
    assert not [cell for cell in cells if cell.startswith(("=", "@"))]
