"""Names are remembered in little memory, and none is taken for another."""

from __future__ import annotations

import sys
import tracemalloc
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.tracing.store import seen
from flashinfer_bench.tracing.store.seen import Seen


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(seen, "_MOST_RECENT", 4)


@pytest.mark.parametrize("numpy", [True, False])
@given(texts=st.lists(st.text(max_size=3)), others=st.lists(st.text(max_size=3)))
def test_it_is_a_set(texts, others, numpy):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seen, "_MOST_RECENT", 4)
        if not numpy:
            patch.setitem(sys.modules, "numpy", None)
        found = Seen(texts)
        assert len(found) == len(set(texts))
        assert found == set(texts)
        assert (found == Seen(others)) is (set(texts) == set(others))
        assert all(text in found for text in texts)
        assert [text in found for text in others] == [text in set(texts) for text in others]


def test_digests_that_end_in_zeros(few, monkeypatch):
    """NumPy strips these zeros; they still count."""
    monkeypatch.setattr(seen, "_digest", lambda text: text.encode().ljust(16, b"\0"))
    names = ["a", "a\0b", "b", "\0", "c", "\0\0d", "e", "f"]
    found = Seen(names)
    assert len(found) == len(names)
    assert all(name in found for name in names)
    assert "g" not in found
    assert "a\0" in found  # the very same 16 bytes as those of "a"


def test_other_things_are_not_in_it():
    assert 3 not in Seen(["3"])


def test_it_takes_a_tenth_of_a_set():
    names = [str(uuid.UUID(int=number)) for number in range(1 << 16)]
    Seen(names)  # imports what it needs
    tracemalloc.start()
    found = Seen(iter(names))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(found) == len(names)
    assert held < 20 * len(names)
