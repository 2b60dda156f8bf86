from __future__ import annotations

import math
import time

import pytest

from flashinfer_bench.bench.transport.deadline import Deadline


def test_never_does_not_expire():
    deadline = Deadline.never()
    assert deadline.remaining == math.inf
    assert not deadline.expired
    assert deadline.poll_ms() is None


@pytest.mark.parametrize("seconds", [0, -1, -1e9])
def test_the_past_has_expired(seconds):
    deadline = Deadline(seconds)
    assert deadline.expired
    assert deadline.remaining == 0.0
    assert deadline.poll_ms() == 0


def test_expires_when_the_time_has_passed():
    deadline = Deadline(0.02)
    assert not deadline.expired
    assert 0 < deadline.remaining <= 0.02
    time.sleep(0.03)
    assert deadline.expired


def test_poll_rounds_up_so_that_a_poll_never_ends_early():
    assert Deadline(1000.0).poll_ms() in (999_999, 1_000_000)
    # A poll of 0 ms would turn the last millisecond into a busy loop.
    assert Deadline(10.0).poll_ms(0.0001) == 1


def test_poll_is_capped():
    assert Deadline.never().poll_ms(0.5) == 500
    assert Deadline(1e300).poll_ms() == 2**30
    assert Deadline(0.001).poll_ms(5.0) == 1
