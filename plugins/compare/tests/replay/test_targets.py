"""Which runs a command line means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_compare.targets import Target, latest, read_targets, split_place
from fib_tests.records import Make
from flashinfer_bench.errors import ConfigError, SelectionError


def trace(timestamp="2026-01-01T00:00:00"):
    return Make.trace("s", status="TIMEOUT", timestamp=timestamp)


class TestPlaces:
    def test_a_file_that_is_called_so(self, tmp_path):
        file = tmp_path / "a:3"
        file.touch()
        assert split_place(str(file)) == (file, None)
        assert split_place(f"{file}:4") == (file, 4)

    @given(st.text("0:x-²٣ ", max_size=5))
    def test_never_anything_but_a_named_error(self, tmp_path_factory, tail):
        file = tmp_path_factory.getbasetemp() / "b.jsonl"
        file.touch()
        with pytest.raises(ConfigError):
            split_place(f"{file}:{tail}")


@given(st.binary(max_size=200))
def test_any_bytes(tmp_path_factory, content):
    file = tmp_path_factory.getbasetemp() / "any.jsonl"
    file.write_bytes(content)
    try:
        found = read_targets(file)
    except SelectionError:
        return
    assert all(one.trace is None for one in found)


def test_the_latest_whatever_the_spelling():
    times = ["2026-03-01T00:00:00Z", "2026-03-01T00:30:00+01:00", "2025-01-01", "never"]
    targets = [Target(trace(timestamp=one)) for one in times]
    assert latest(targets) == [targets[3], targets[2], targets[1], targets[0]]
    assert latest(targets, 1) == [targets[0]]
    assert latest([Target(None)], 3) == [Target(None)]
