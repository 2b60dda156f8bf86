"""The helpers that adapters share."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fib_adapters_flashinfer import common
from fib_adapters_flashinfer.common import (
    PerDefinition,
    capturing,
    fill,
    first_output,
    neutral,
    unit_scale,
    with_lse,
)
from fib_adapters_flashinfer.paged import as_pages
from flashinfer_bench.integration.routing import UnroutableError
from flashinfer_bench.integration.slots import Everything, board


def test_importing_it_does_not_import_torch():
    code = "import sys, fib_adapters_flashinfer.common; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_what_needs_torch_is_there_when_it_is_asked_for():
    assert common.halves() == (torch.float16, torch.bfloat16)


# ----------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("value", "defaults", "expected"),
    [
        (None, (), True),
        (None, (-1,), True),
        (-1, (-1,), True),
        (-1.0, (-1,), True),
        (4, (-1,), False),
        (0, (), False),
        ("NONE", ("NONE",), True),
        ("ROPE", ("NONE",), False),
        (0.0, (0,), True),
        (torch.tensor(-1), (-1,), False),
        (torch.zeros(3), (0,), False),
    ],
)
def test_options_that_do_nothing(value, defaults, expected):
    assert neutral(value, *defaults) is expected


@pytest.mark.parametrize("value", [None, 1, 1.0, True, torch.tensor(1.0), torch.ones(1, 1)])
def test_scales_that_do_nothing(value):
    assert unit_scale(value)


@pytest.mark.parametrize(
    "value",
    [0.5, 0, 1.0001, float("nan"), torch.tensor(0.5), torch.ones(2), torch.ones((), device="meta")],
)
def test_scales_that_do_something(value):
    assert not unit_scale(value)


def test_capturing_is_asked_only_where_there_is_a_device(flashinfer, cpu):
    assert not capturing()
    with cpu() as patch:
        assert not capturing()
        patch.capturing = True
        assert capturing()
    assert not capturing()


# ------------------------------------------------------------------------------- page caches


@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["NHD", "HND"]),
    st.booleans(),
)
def test_all_forms_of_a_cache_are_the_same_pages(pages, size, heads, layout, whole):
    nhd = torch.arange(pages * 2 * size * heads * 2).view(pages, 2, size, heads, 2)
    given_ = nhd if layout == "NHD" else nhd.transpose(2, 3).contiguous()
    cache = given_ if whole else (given_[:, 0], given_[:, 1])
    k, v = as_pages(cache, layout, nhd.dtype)
    assert torch.equal(k, nhd[:, 0])
    assert torch.equal(v, nhd[:, 1])
    assert k.untyped_storage().data_ptr() == given_.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "cache",
    [
        None,
        torch.zeros(2, 3, 2, 2, 2),
        (torch.zeros(2, 2, 2, 2),),
        (torch.zeros(2, 2, 2, 2), torch.zeros(2, 2)),
        "cache",
    ],
    ids=["none", "3 in 5-D", "one", "2-D", "text"],
)
def test_other_forms_are_refused(cache):
    with pytest.raises(UnroutableError, match="form of the kv cache"):
        as_pages(cache, "NHD", torch.float32)


@pytest.mark.parametrize("whole", [False, True])
def test_other_layouts_are_refused(whole):
    one = torch.zeros(1, 2, 1, 1, 1)
    with pytest.raises(UnroutableError, match="layout"):
        as_pages(one if whole else one.unbind(1), "DHN", one.dtype)


@pytest.mark.parametrize("whole", [False, True])
def test_element_types(whole):
    one = torch.zeros(1, 2, 1, 1, 1, dtype=torch.float16)
    cache = one if whole else one.unbind(1)
    assert as_pages(cache, "NHD", torch.float16)[0].shape == (1, 1, 1, 1)
    mixed = [] if whole else [(cache[0], cache[1].float())]
    for each, dtype in [(cache, torch.bfloat16), *((pair, torch.float16) for pair in mixed)]:
        with pytest.raises(UnroutableError, match="dtype"):
            as_pages(each, "NHD", dtype)


# ----------------------------------------------------------------------------------- buffers


def test_buffers_are_filled_and_returned():
    value, buffer = torch.ones(2, 3), torch.zeros(2, 3)
    assert fill(None, value) is value
    assert fill(value, value) is value
    assert fill(buffer, value) is buffer
    assert torch.equal(buffer, value)
    wide = torch.zeros(1, 2, 3)
    assert fill(wide, value) is wide
    assert torch.equal(wide[0], value)


def test_lse_is_returned_only_if_it_is_asked_for():
    result = (torch.ones(2), torch.full((2,), 2.0))
    out, lse = torch.zeros(2), torch.zeros(2)
    assert with_lse(result, out, None, return_lse=False) is out
    found = with_lse(result, out, lse, return_lse=True)
    assert found[0] is out
    assert found[1] is lse
    assert torch.equal(lse, result[1])
    assert first_output(result) is result[0]
    assert first_output(out) is out


# ------------------------------------------------------------------------------- definitions


class Knows:
    """A runtime that has some definitions."""

    def __init__(self, **definitions):
        self._definitions = definitions

    def names(self):
        return Everything(self._definitions)

    def definition(self, name):
        return self._definitions.get(name)

    def route(self, name, slot):
        return None

    def stop(self):
        board.remove(self)


def test_what_is_known_of_a_definition_is_worked_out_once_until_things_change():
    asked = []

    def work_out(name, definition):
        asked.append(definition)
        return definition or "nothing"

    known = PerDefinition(work_out)
    runtimes = [Knows(a="first"), Knows(a="second")]
    try:
        for runtime, expected in zip(runtimes, ("first", "second"), strict=True):
            board.push(runtime)
            assert [known("a"), known("a"), known("b"), known("b")] == [
                expected,
                expected,
                "nothing",
                "nothing",
            ]
    finally:
        for runtime in runtimes:
            runtime.stop()
    assert asked == ["first", None, "second", None]
    assert known("a") == "nothing"


def test_it_may_be_asked_by_sizes():
    known = PerDefinition(lambda name, definition: name, "norm_h{}".format)
    assert [known(8), known(8), known(16)] == ["norm_h8", "norm_h8", "norm_h16"]


def test_names_are_not_kept_without_end(monkeypatch):
    monkeypatch.setattr(common, "_MOST_NAMES", 3)
    asked = []
    known = PerDefinition(lambda name, definition: asked.append(name) or "value")
    for _ in range(2):
        assert [known(name) for name in "abcde"] == ["value"] * 5
    assert len(asked) == 7
