"""Any valid record comes back from JSON as it was."""

from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data import (
    Correctness,
    Definition,
    DType,
    Environment,
    Evaluation,
    Performance,
    Provenance,
    Trace,
    Workload,
    from_json,
    to_json,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
SIZES = st.integers(0, 1 << 62)
FINITE = st.floats(0, allow_infinity=False, allow_nan=False)
ERRORS = st.floats(0) | st.just(math.nan)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


def optional(strategy):
    return st.none() | strategy


# -------------------------------------------------------------------------------------- definitions

AXIS_NAMES = st.sampled_from(["M", "N", "K", "batch size", "é"])
AXES = st.dictionaries(
    AXIS_NAMES,
    st.fixed_dictionaries({"type": st.just("var")}, optional={"description": optional(TEXT)})
    | st.fixed_dictionaries({"type": st.just("const"), "value": SIZES}),
    min_size=1,
)


@st.composite
def definitions(draw):
    axes = draw(AXES)
    shapes = optional(st.lists(st.sampled_from(sorted(axes)) | st.just("7"), max_size=3))
    tensors = st.fixed_dictionaries(
        {"shape": shapes, "dtype": st.sampled_from(list(DType))}, optional={"description": TEXT}
    )
    names = draw(st.lists(NAMES, min_size=2, max_size=5, unique=True))
    split = draw(st.integers(0, len(names)))
    return Definition(
        name=draw(NAMES),
        op_type=draw(NAMES),
        axes=axes,
        inputs={name: draw(tensors) for name in names[:split]},
        outputs={name: draw(tensors) for name in names[split:]},
        reference=draw(st.sampled_from(["def run(x): return x", "run = print"])),
        tags=draw(st.lists(NAMES, max_size=2)),
        description=draw(optional(TEXT)),
        constraints=draw(st.lists(st.sampled_from(["M == N + 1", "K % 2 == 0"]), max_size=2)),
    )


@given(definitions())
def test_definition(definition):
    assert from_json(to_json(definition), Definition) == definition
    assert Definition.model_validate(definition.model_dump()) == definition
    assert Definition.model_validate(definition.model_dump(mode="json")) == definition


# ------------------------------------------------------------------------------------------- traces

INPUTS = (
    st.just({"type": "random"})
    | st.fixed_dictionaries(
        {
            "type": st.just("scalar"),
            "value": st.booleans() | st.integers() | st.floats(allow_nan=False),
        }
    )
    | st.fixed_dictionaries({"type": st.just("safetensors"), "path": NAMES, "tensor_key": NAMES})
)
WORKLOADS = st.builds(
    Workload,
    axes=st.dictionaries(NAMES, SIZES, max_size=3),
    inputs=st.dictionaries(NAMES, INPUTS, max_size=3),
    uuid=NAMES,
)
CORRECTNESS = st.builds(
    Correctness,
    max_relative_error=ERRORS,
    max_absolute_error=ERRORS,
    extra=optional(st.dictionaries(TEXT, ANYTHING, max_size=2)),
)
PERFORMANCE = st.builds(
    Performance,
    latency_ms=FINITE,
    reference_latency_ms=FINITE,
    speedup_factor=FINITE,
    samples_ms=optional(st.lists(FINITE, max_size=4)),
)
PROVENANCE = st.builds(
    Provenance,
    seed=optional(st.integers(0, 1 << 63)),
    timer=optional(TEXT),
    transient=st.booleans(),
    wall_s=optional(FINITE),
    extra=st.dictionaries(TEXT, ANYTHING, max_size=2),
)


@st.composite
def evaluations(draw):
    status = draw(st.sampled_from(["PASSED", "INCORRECT_NUMERICAL", "TIMEOUT", "COMPILE_ERROR"]))
    return Evaluation(
        status=status,
        environment=Environment(
            hardware=draw(NAMES), libs=draw(st.dictionaries(NAMES, TEXT, max_size=2))
        ),
        timestamp=draw(NAMES),
        log=draw(TEXT),
        correctness=draw(CORRECTNESS) if status in ("PASSED", "INCORRECT_NUMERICAL") else None,
        performance=draw(PERFORMANCE) if status == "PASSED" else None,
        provenance=draw(optional(PROVENANCE)),
    )


@st.composite
def traces(draw):
    solution = draw(optional(NAMES))
    return Trace(
        definition=draw(NAMES),
        workload=draw(WORKLOADS),
        solution=solution,
        evaluation=None if solution is None else draw(evaluations()),
    )


def same(one, two):
    """Compare plain data, where a NaN equals a NaN."""
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, float) and isinstance(two, float) and math.isnan(one):
        return math.isnan(two)
    return one == two and type(one) is type(two)


@given(traces())
def test_trace(trace):
    plain = trace.model_dump()
    text = to_json(trace, indent=None)
    assert "\n" not in text
    json.loads(text, parse_constant=lambda token: 1 / 0)
    assert same(from_json(text, Trace).model_dump(), plain)
    assert same(from_json(to_json(trace), Trace).model_dump(), plain)
    assert same(Trace.model_validate(trace.model_dump(mode="json")).model_dump(), plain)
    assert same(Trace.model_validate(plain).model_dump(), plain)
