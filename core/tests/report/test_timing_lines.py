"""What is told of a timing, whatever a trace holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.report.page.timing import timing_lines

WATCHED = {
    "nvml": {
        "readings": 31,
        "sm_mhz": [1755, 1980, 1980],
        "idle_sm_mhz": [210, 210, 210],
        "temperature_c": [38, 41, 44],
        "power_w": [310.2, 482.0, 533.9],
        "gpu_percent": [12, 64, 88],
        "states": {"power_cap": 0.06452, "idle": 1},
        "power_limit_w": 700.0,
    },
    "cpu": {"load": [0.5, 0.6, 0.7], "governor": "performance", "steal_share": 0.0},
    "waited_s": 1.5,
}


def test_clocks_throttling_and_load_are_told():
    text = timing_lines(
        {"ended_by": "rule", "outcome": "standard error 0.4%", "cache": "cold", "watched": WATCHED}
    )
    assert text.split("\n") == [
        "ended by: rule",
        "outcome: standard error 0.4%",
        "nvml: SM clock 1980 (1755 to 1980) MHz; SM clock when idle 210 MHz; "
        "temperature 41 (38 to 44) °C; power 482.0 (310.2 to 533.9) W; gpu 64 (12 to 88) %; "
        "states: power cap 6%, idle 100%; power limit 700.0 W",
        "cpu: load 0.6 (0.5 to 0.7); governor performance; steal share 0.0",
        "waited 1.5 s",
    ]


@pytest.mark.parametrize("timing", [{}, {"cache": "cold"}, {"watched": {}}, {"watched": [1]}])
def test_nothing_to_tell(timing):
    assert timing_lines(timing) == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["watched", "outcome", "ended_by", "x"]), JSON))
def test_whatever_is_in_a_trace_a_text_comes_out(timing):
    assert isinstance(timing_lines(timing), str)


def test_it_is_not_endless():
    text = timing_lines({"watched": {"cpu": {f"fact_{n}": n for n in range(1_000)}}})
    assert len(text) == 900
    assert text.endswith("…")
