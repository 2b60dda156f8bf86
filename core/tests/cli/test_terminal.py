"""On a terminal: drawn tables, a progress bar with the time left, and no escape from names."""

from __future__ import annotations

import re

import pytest

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def plain(shown):
    return ESCAPE.sub("", shown)


@pytest.mark.plugin("report")
def test_a_narrow_terminal_loses_nothing(fib_terminal, maker):
    code, shown = fib_terminal("report", "best", "--local", maker.sound().root, columns=60)
    assert code == 0
    text = plain(shown)
    assert max(map(len, text.splitlines())) <= 60
    assert re.search(r"^ +rank +solution +geomean_ms", text, re.MULTILINE)
    assert re.search(r"^double\n +1 +alice_double +0\.5 ", text, re.MULTILINE)
    assert "…" not in text
    assert "..." not in text


@pytest.mark.plugin("report")
def test_names_cannot_talk_to_the_terminal(fib_terminal, maker):
    maker.sound()
    maker.trace("\x1b[2J\x1b]0;title\x07[bold red]name")
    _, shown = fib_terminal("report", "best", "--local", maker.root, "--log-level", "ERROR")
    assert "\x1b[2J" not in shown
    assert "\x1b]0;" not in shown
    _, shown = fib_terminal("validate", "--local", maker.root, columns=200)
    assert "[bold red]name" in plain(shown)
    assert "\x1b[2J" not in shown


@pytest.mark.torch
@pytest.mark.plugin("python")
def test_a_run_shows_a_bar_then_a_table(fib_terminal, maker):
    maker.definition()
    maker.solution()
    maker.solution("wrong_double", author="bob", code="def run(x):\n    return x\n")
    for index in range(3):
        maker.workload(uuid=f"w{index}")
    code, shown = fib_terminal(
        "run", "--local", maker.root, "--device", "cpu", "--iterations", "2", "--num-trials", "1"
    )
    assert code == 0, shown
    text = plain(shown)
    assert "━" in text
    assert re.search(r"\d/6", text)
    assert re.search(r"left \d:\d\d:\d\d", text)
    assert "3 failed" in text
    assert "[1/6]" not in text  # those lines are for pipes
    end = text[text.rindex("Results") :]
    assert re.search(r"definition +solution +workloads +status +geomean_ms +speedup\n", end)
    assert "\t" not in end
    assert "\x1b[32mPASSED" in shown
    assert "\x1b[31mINCORRECT_NUMERICAL" in shown
    assert "PASSED" in end
    assert "INCORRECT_NUMERICAL" in end
    assert "6 evaluations in" in end
    assert "traces written to" in end
    assert "\x1b[?25h" in shown  # the cursor is back
