"""Which workloads are of no use, and why."""

from __future__ import annotations

import copy
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data import Definition, Workload
from flashinfer_bench.tracing.sanitize import Limits, Reason
from flashinfer_bench.tracing.sanitize.rules import Subject, judge, sizes

RECORD = {
    "name": "ragged",
    "op_type": "gqa",
    "axes": {
        "batch": {"type": "var"},
        "len_indptr": {"type": "var"},
        "total": {"type": "var"},
        "H": {"type": "const", "value": 2},
    },
    "inputs": {
        "q": {"shape": ["batch", "H"], "dtype": "bfloat16"},
        "k": {"shape": ["total", "H"], "dtype": "float32"},
        "kv_indptr": {"shape": ["len_indptr"], "dtype": "int32"},
        "seq_lens": {"shape": ["batch"], "dtype": "int32"},
        "scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"o": {"shape": ["batch", "H"], "dtype": "bfloat16"}},
    "reference": "def run(q, k, kv_indptr, seq_lens, scale):\n    return q\n",
    "constraints": ["len_indptr == batch + 1", "total == kv_indptr[-1].item()"],
}
RAGGED = Definition.model_validate(RECORD)


def subject(indptr=(0, 2, 5), lens=None, scale=0.5, definition=RAGGED, stored=True, **axes):
    fits = {"batch": len(indptr) - 1, "len_indptr": len(indptr), "total": indptr[-1], **axes}
    inputs = {name: {"type": "random"} for name in ("q", "k", "kv_indptr", "seq_lens")}
    inputs["scale"] = {"type": "scalar", "value": scale}
    workload = Workload.model_validate({"axes": fits, "inputs": inputs, "uuid": "w"})
    integers = {"kv_indptr": list(indptr)} if stored else {}
    if lens is not None:
        integers["seq_lens"] = list(lens)
    return Subject(definition, workload, integers)


def reason(one, **limits):
    found = judge(one, Limits(**limits))
    return None if found is None else found[0]


def test_a_sound_one():
    assert judge(subject(), Limits()) is None
    assert judge(subject((0, 2, 2, 5), lens=[2, 0, 3]), Limits()) is None  # one empty sequence


@pytest.mark.parametrize(
    ("one", "expected", "message"),
    [
        (subject(batch=0), Reason.ZERO_AXIS, "batch = 0"),
        (subject(batch=0, total=0), Reason.ZERO_AXIS, "batch, total = 0"),
        (subject(scale=float("nan")), Reason.NOT_FINITE, "scale = nan"),
        (subject(scale=float("-inf")), Reason.NOT_FINITE, "scale = -inf"),
        (subject((1, 2, 5)), Reason.BAD_INDPTR, "kv_indptr begins at 1, not at 0"),
        (subject((0, 6, 5)), Reason.BAD_INDPTR, "kv_indptr goes down from 6 to 5 at 2"),
        (subject((0, 0, 0), total=4), Reason.EMPTY_BATCH, "all 2 sequences are empty"),
        (subject(lens=[0, 0]), Reason.EMPTY_BATCH, "all 2 lengths of seq_lens are 0"),
        (subject(total=7), Reason.CONSTRAINT, "'total == kv_indptr[-1].item()' does not hold"),
        (subject(len_indptr=9), Reason.CONSTRAINT, "(batch=2, len_indptr=9)"),
    ],
)
def test_what_is_of_no_use(one, expected, message):
    found = judge(one, Limits())
    assert found is not None
    assert found[0] is expected
    assert message in found[1]


@pytest.mark.parametrize("value", [True, 0, 10**400, 1e308])
def test_numbers_that_are_finite(value):
    assert judge(subject(scale=value), Limits()) is None


def test_without_the_tensor_nothing_is_said_of_it():
    assert judge(subject((3, 2, 1), stored=False), Limits()) is None


@pytest.mark.parametrize(
    "constraint",
    [
        "k.shape[1] == 7",  # of a shape
        "total == kv_indptr[99].item()",  # beyond its end
        "total == nothing[-1].item()",  # of no input
        "unknown_axis == 3",
        "total // (batch - 2) == 1",  # divides by zero
        "kv_indptr[-1].item() + q.sum() > 0",
    ],
)
def test_constraints_that_cannot_be_decided(constraint):
    definition = Definition.model_validate({**RECORD, "constraints": [constraint]})
    assert judge(subject(definition=definition), Limits()) is None


@pytest.mark.parametrize(
    ("constraint", "holds"),
    [
        ("kv_indptr[0].item() == 0", True),
        ("kv_indptr[1].item() * 2 < total", True),
        ("kv_indptr[-1].item() - kv_indptr[-2].item() == 3", True),
        ("total < kv_indptr[-1].item()", False),
    ],
)
def test_constraints_about_values(constraint, holds):
    definition = Definition.model_validate({**RECORD, "constraints": [constraint]})
    expected = None if holds else Reason.CONSTRAINT
    assert reason(subject(definition=definition)) is expected


@pytest.mark.parametrize(
    "name", ["indptr", "qo_indptr", "cu_seqlens", "cu_seq_lens", "kv_indptr_cpu"]
)
def test_names_of_offsets(name):
    record = copy.deepcopy(RECORD)
    record["inputs"] = {**record["inputs"], name: {"shape": ["len_indptr"], "dtype": "int32"}}
    one = subject(definition=Definition.model_validate(record))
    assert reason(one._replace(integers={name: [0, 5, 3]})) is Reason.BAD_INDPTR


@pytest.mark.parametrize("name", ["indptrs_of", "indices", "last_page_len", "focus_seqlens_x"])
def test_names_of_other_things(name):
    record = copy.deepcopy(RECORD)
    record["inputs"] = {**record["inputs"], name: {"shape": ["len_indptr"], "dtype": "int32"}}
    one = subject(definition=Definition.model_validate(record))
    assert reason(one._replace(integers={name: [4, 5, 3]})) is None


def test_sizes():
    # q and o: 2 x 2 of 2 bytes; k: 5 x 2 of 4; kv_indptr: 3 of 4; seq_lens: 2 of 4; scale: 4
    assert sizes(RAGGED, subject().workload) == (8 + 8 + 40 + 12 + 8 + 4, 10)


def test_sizes_of_packed_elements():
    record = copy.deepcopy(RECORD)
    record["inputs"]["k"]["dtype"] = "float4_e2m1"
    definition = Definition.model_validate(record)
    assert sizes(definition, subject((0, 2, 5)).workload)[0] == 8 + 8 + 5 + 12 + 8 + 4


def test_limits():
    assert reason(subject(), max_bytes=80, max_elements=10) is None
    assert reason(subject(), max_bytes=79) is Reason.OUTSIZED
    assert reason(subject(), max_elements=9) is Reason.OUTSIZED


def test_an_axis_without_a_value_has_no_size():
    one = subject()
    workload = one.workload.model_copy(update={"axes": {"batch": 2}})
    assert judge(one._replace(workload=workload), Limits(max_bytes=1)) is None


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_offsets_of_real_lengths_are_sound_unless_all_are_empty(lengths):
    indptr = (0, *accumulate(lengths))
    found = reason(subject(indptr))
    assert found is (None if any(lengths) else Reason.ZERO_AXIS)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=8))
def test_offsets_that_are_none_are_found(values):
    sound = values[0] == 0 and sorted(values) == values
    found = reason(subject(tuple(values)))
    assert (found in (None, Reason.ZERO_AXIS)) or not sound
    if not sound and values[-1] and len(values) > 1:
        assert found is Reason.BAD_INDPTR
