"""While a CUDA graph is captured: faked, as the question alone decides."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.apply.dispatch import Stats, Target, dispatcher, target
from flashinfer_bench.apply.keys import AxesOnlyKeyBuilder

pytestmark = pytest.mark.usefixtures("guards")


@pytest.fixture
def capturing(monkeypatch):
    """Whether a graph is being captured: what stands for the stream."""
    found = SimpleNamespace(now=False)
    monkeypatch.setattr(dispatcher, "is_capturing", lambda: found.now)
    return found


def test_nothing_is_resolved(bench, xy, capturing):
    made = bench(lambda x, y: x + y)
    capturing.now = True
    for _ in range(3):
        assert made(*xy) == "original"
    assert made.resolver.asked == []
    assert made.stats == Stats(fallbacks=3, misses={"capture": 3})
    capturing.now = False
    assert torch.equal(made(*xy), xy[0] + xy[1])
    capturing.now = True
    for _ in range(3):
        assert torch.equal(made(*xy), xy[0] + xy[1])
    assert len(made.resolver.asked) == 1


def test_nothing_is_compared(bench, xy, capturing):
    made = bench(lambda x, y: x + y, shadow_calls=2, original=lambda x, y: x + y)
    made(*xy)
    capturing.now = True
    for _ in range(3):
        made(*xy)
    assert made.stats == Stats(fallbacks=4, misses={"capture": 3})
    assert made.solution.calls == 1
    capturing.now = False
    made(*xy)
    assert made.state == ["plain"]
    capturing.now = True
    made(*xy)
    assert made.stats.hits == 1


class Reader(AxesOnlyKeyBuilder):
    """Reads data, which waits for the device."""

    reads_data = True

    def features(self, args):
        return (("first", float(args[0][0, 0])),)


def test_no_key_is_made_that_reads_data(bench, xy, capturing):
    made = bench(lambda x, y: x + y, key_builder=Reader)
    made(*xy)
    capturing.now = True
    assert made(*xy) == "original"
    assert made.stats == Stats(1, 1, 0, {"capture": 1})


def test_a_target_is_kept_with_its_build(make_definition):
    class Owner:
        _explain = None

    def make():
        return Target(
            lambda x, y: x,
            make_definition(),
            solution="s",
            destination_passing=False,
            owner=Owner(),
        )

    kept, other = make(), make()
    target.keep_for_ever(kept)
    target.keep_for_ever(kept)
    gone = [weakref.ref(each) for each in (kept.owner, kept.function, other.owner, other.function)]
    key = id(kept.function)
    del kept, other
    gc.collect()
    assert [each() is not None for each in gone] == [True, True, False, False]
    target.kept.pop(key)
