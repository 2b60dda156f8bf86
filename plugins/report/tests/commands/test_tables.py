"""``fib report``: formats of tables."""

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_report.tables import Format, write_tables

# ------------------------------------------------------------------------------------ formats


def test_every_format_has_the_same_rows(fib, maker):
    root = maker.sound().root
    shown = {
        form: fib("report", "best", "--local", root, "--format", form).stdout.split("\n\n")
        for form in ("table", "csv")
    }
    drawn = [line.split("\t") for line in shown["table"][0].splitlines()]
    read = list(csv.reader(io.StringIO(shown["csv"][0])))
    assert drawn[0] == read[0]
    assert len(drawn) == len(read) >= 2
    markdown = fib("report", "best", "--local", root, "--format", "markdown").stdout
    block = markdown.split("\n\n")[1].splitlines()
    assert markdown.startswith("### ")
    assert len(block) == len(read) + 1
    # Programs have further columns: both ends of an interval, which people read as ±.
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block}) == 1
    assert len(re.findall(r"(?<!\\)\|", block[0])) <= len(read[0]) + 1


def written(capsys, form, columns, rows):
    capsys.readouterr()
    write_tables(form, [("a *title*", columns, rows)], dict)
    return capsys.readouterr().out


FORMULAS = st.builds("{}{}".format, st.sampled_from("=+-@\t\r'"), st.text(max_size=6))
CELLS = FORMULAS | st.text(max_size=12) | st.none() | st.integers() | st.floats() | st.booleans()


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


# -------------------------------------------------------------------------------- regressions


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ('=HYPERLINK("http://x","y")', '\'=HYPERLINK("http://x","y")'),
        ("-kernel", "'-kernel"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("'tis text", "''tis text"),
        ("a=b", "a=b"),
        (-3, "-3"),
    ],
)
def test_no_cell_of_csv_is_a_formula(capsys, value, cell):
    text = written(capsys, Format.csv, ("=a", "b"), [(value, "x")])
    assert list(csv.reader(io.StringIO(text))) == [["'=a", "b"], [cell, "x"]]
