"""Records: what is accepted, how it is stored, and what is refused with which words."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data import Definition
from flashinfer_bench.plugins import (
    AdapterSpec,
    Availability,
    BuilderSpec,
    CommandSpec,
    EvaluatorSpec,
    KeyBuilderSpec,
    TimerSpec,
)

# Values for what a kind requires beyond the common fields.
VALUES = {"handles": (("python", None),), "layer": "solution", "devices": ("cpu",)}


def required(spec):
    missing = (each for each in dataclasses.fields(spec) if each.default is dataclasses.MISSING)
    own = (each.name for each in missing if each.name not in ("name", "factory"))
    return {name: VALUES.get(name, ("word",)) for name in own}


def make(spec, **changes):
    fields = {"name": "x", "factory": "package.module:Name", **required(spec), **changes}
    return spec(**fields)


names = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,10}[a-z0-9])?", fullmatch=True)


@given(names)
def test_names_are_compared_in_lower_case_and_without_blanks(name):
    assert make(TimerSpec, name=f" {name.upper()}\n") == make(TimerSpec, name=name)


@pytest.mark.parametrize(
    "name",
    [*("", " ", "a b c", "-a", "a-", ".a", "a/b", "ünits", "a\x00", "*", "a,b")],
)
@pytest.mark.parametrize("spec", [BuilderSpec, CommandSpec])
def test_names_that_could_not_be_typed_are_refused(spec, name):
    with pytest.raises(ValueError, match=f"{spec.__name__} .*: a name may have letters"):
        make(spec, name=name)


@pytest.mark.parametrize(
    "path",
    ["", "a", "a.b", ":", "a:", ":b", "a:b:c", "a b:c", "a..b:c", "a:b.", "1a:b", "a-b:c", "a:b()"],
)
@pytest.mark.parametrize("field", ["factory", "probe"])
def test_a_path_that_is_no_import_path_is_refused(field, path):
    with pytest.raises(ValueError, match=rf"BuilderSpec 'x': {field} .* 'package.module:Name'"):
        make(BuilderSpec, **{field: path})


def test_texts_are_stored_on_one_line():
    assert make(TimerSpec, summary="  two\n words \n").summary == "two words"
    spec = make(TimerSpec, resolution_ms=1, overhead=" much ")
    assert (type(spec.resolution_ms), spec.overhead) == (float, "much")


def test_handles_are_stored_as_pairs_in_lower_case():
    record = make(BuilderSpec, handles=[["CUDA", "Torch"], ("cuda", None), ("cpp", "*")])
    assert record.handles == (("cuda", "torch"), ("cuda", None), ("cpp", "*"))


@pytest.mark.parametrize(
    "handles",
    [
        *((), "python", None, ("python", None), (("python", None, 1),), (("", None),)),
        *((("*", None),), ((None, None),), (("python", 3),), (("python", ""),), {"python": None}),
    ],
)
def test_other_handles_are_refused(handles):
    with pytest.raises(ValueError, match=r"BuilderSpec 'x': .*handles"):
        make(BuilderSpec, handles=handles)


def test_words_and_devices_are_stored_as_tuples():
    assert make(TimerSpec, devices=["CPU", "cuda"]).devices == ("cpu", "cuda")
    assert make(KeyBuilderSpec, op_types=iter(["a", " b "])).op_types == ("a", "b")


@pytest.mark.parametrize(
    ("spec", "field", "values"),
    [
        (BuilderSpec, "factory", (None, int, b"a:b")),
        (BuilderSpec, "compiles", (1, None)),
        (BuilderSpec, "devices", ("cuda", ("cuda:0",), ("",))),
        (TimerSpec, "priority", (True, 1.0, "50", None)),
        (TimerSpec, "devices", (("c pu",), (), "cpu", None, (1,), 3)),
        (TimerSpec, "resolution_ms", ("1", True, 0, -1.0, float("nan"), float("inf"))),
        (TimerSpec, "overhead", (None,)),
        (TimerSpec, "caches", ((), ("cold", "lukewarm"), "cold")),
        (AdapterSpec, "targets", ((), ("a", " "), "word", b"word", (b"word",), None)),
    ],
)
def test_other_values_are_refused(spec, field, values):
    for value in values:
        with pytest.raises(ValueError, match=f"{spec.__name__} 'x': .*{field}"):
            make(spec, **{field: value})


def definition(op_type, name="whatever", **tensors):
    spec = {side: {} for side in ("inputs", "outputs")}
    for tensor, dtype in {"x_in": "float32", "y_out": "float32", **tensors}.items():
        side = "outputs" if tensor.endswith("_out") else "inputs"
        spec[side][tensor] = {"shape": ["n"], "dtype": dtype}
    axes = {"n": {"type": "var"}}
    reference = "def run(*tensors):\n    pass\n"
    return Definition(name=name, op_type=op_type, axes=axes, reference=reference, **spec)


SAMPLER = {"probs_in": "float32", "samples_out": "int64"}


@pytest.mark.parametrize(
    ("patterns", "accepted", "declined"),
    [
        (
            {"op_types": ("dsa_*", "moe"), "definitions": ("top_k_?",)},
            [definition("dsa_paged"), definition("moe"), definition("gemm", "top_k_1")],
            [definition("gemm", "top_k_10"), definition("MOE")],
        ),
        (
            {"op_types": ("moe",), "dtypes": ("float8*", "float4*")},
            [definition("moe"), definition("gemm", b_in="float8_e4m3fn")],
            [definition("gemm", b_out="float8_e4m3fn"), definition("gemm", b_in="bfloat16")],
        ),
        (
            {"op_types": ("sampling",), "inputs": ("p*", "logits*"), "outputs": ("samples*",)},
            [
                definition("sampling", **SAMPLER),
                definition("sampling", logits_in="float32", samples_out="int64"),
            ],
            [
                definition("sampling", probs_in="float32"),
                definition("sampling", samples_out="int64"),
                definition("gemm", **SAMPLER),
            ],
        ),
        ({}, [], [definition("moe")]),
    ],
)
def test_one_pattern_and_all_named_tensors_decide_for_an_evaluator(patterns, accepted, declined):
    record = make(EvaluatorSpec, **patterns)
    assert all(record.accepts(one) for one in accepted)
    assert not any(record.accepts(one) for one in declined)


def test_an_evaluator_without_patterns_is_a_fallback():
    assert make(EvaluatorSpec).is_fallback
    for field in ("op_types", "definitions", "dtypes", "inputs", "outputs"):
        assert not make(EvaluatorSpec, **{field: ("x*",)}).is_fallback


@pytest.mark.parametrize("reason", ["", "  ", "\n"])
def test_a_no_has_a_reason(reason):
    with pytest.raises(ValueError, match="a reason is required"):
        Availability(False, reason)


@pytest.mark.parametrize("arguments", [(1,), (None,), ("yes",), (True, None), (True, "", 3)])
def test_an_answer_of_other_types_is_refused(arguments):
    with pytest.raises(ValueError, match="Availability: "):
        Availability(*arguments)
