"""Records: what is accepted, how it is stored, and what is refused with which words."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data import Definition
from flashinfer_bench.plugins import (
    KINDS,
    AdapterSpec,
    Availability,
    BuilderSpec,
    CommandSpec,
    EvaluatorSpec,
    ExecutorSpec,
    KeyBuilderSpec,
    TimerSpec,
)
from flashinfer_bench.plugins.records import hook_of

# What each kind needs beyond the common fields.
OWN_FIELDS = {
    BuilderSpec: {"handles": (("python", None),)},
    TimerSpec: {"devices": ("cpu",)},
    KeyBuilderSpec: {"op_types": ("gemm",)},
    AdapterSpec: {"targets": ("library.function",)},
    EvaluatorSpec: {},
    ExecutorSpec: {"devices": ("cpu", "cuda")},
    CommandSpec: {},
}

every_kind = pytest.mark.parametrize("spec", OWN_FIELDS, ids=lambda spec: spec.__name__)


def make(spec, **changes):
    fields = {"name": "x", "factory": "package.module:Name", **OWN_FIELDS[spec], **changes}
    return spec(**fields)


identifiers = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
names = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,10}[a-z0-9])?", fullmatch=True)
paths = st.builds(
    lambda modules, attributes: f"{'.'.join(modules)}:{'.'.join(attributes)}",
    st.lists(identifiers, min_size=1, max_size=4),
    st.lists(identifiers, min_size=1, max_size=2),
)


# ------------------------------------------------------------------ common fields


def test_there_is_a_record_type_for_every_kind_and_a_hook():
    assert set(KINDS.values()) == set(OWN_FIELDS)
    assert [hook_of(kind) for kind in KINDS] == [
        "fib_register_builders",
        "fib_register_timers",
        "fib_register_key_builders",
        "fib_register_adapters",
        "fib_register_evaluators",
        "fib_register_executors",
        "fib_register_commands",
    ]


@every_kind
def test_the_kind_belongs_to_the_type(spec):
    assert KINDS[spec.kind] is spec
    assert make(spec).kind == spec.kind


@every_kind
def test_defaults(spec):
    record = make(spec)
    assert (record.summary, record.probe, record.priority) == ("", None, 50)


@every_kind
def test_a_record_is_frozen_hashable_and_can_be_pickled(spec):
    record = make(spec)
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.name = "y"
    assert hash(record) == hash(make(spec))
    assert pickle.loads(pickle.dumps(record)) == record


@every_kind
def test_fields_are_given_by_keyword(spec):
    with pytest.raises(TypeError, match="positional"):
        spec("x", "package.module:Name")


@every_kind
@pytest.mark.parametrize("missing", ["name", "factory"])
def test_name_and_factory_are_required(spec, missing):
    fields = {"name": "x", "factory": "a:b", **OWN_FIELDS[spec]}
    del fields[missing]
    with pytest.raises(TypeError, match=missing):
        spec(**fields)


@given(names, paths, paths, st.integers())
def test_whatever_is_well_formed_is_kept(name, factory, probe, priority):
    record = make(TimerSpec, name=name, factory=factory, probe=probe, priority=priority)
    assert (record.name, record.factory, record.probe, record.priority) == (
        *(name, factory, probe),
        priority,
    )


@given(names)
def test_names_are_compared_in_lower_case_and_without_blanks(name):
    assert make(TimerSpec, name=f" {name.upper()}\n") == make(TimerSpec, name=name)


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "-a", "a-", ".a", "a/b", "a:b", "ünits", "a\x00", "a\tb", "*", "a,b", "a\nb"],
)
@every_kind
def test_names_that_could_not_be_typed_are_refused(spec, name):
    with pytest.raises(ValueError, match=f"{spec.__name__} .*: name may hold letters"):
        make(spec, name=name)


@given(st.text())
def test_any_text_is_a_name_or_a_value_error(text):
    try:
        record = make(CommandSpec, name=text)
    except ValueError:
        return
    assert record.name == text.strip().lower()
    assert record.name.isascii()


@given(st.one_of(st.none(), st.integers(), st.binary(), st.lists(st.text())))
def test_names_that_are_no_text_are_a_type_error(value):
    with pytest.raises(TypeError, match="name must be a string"):
        make(CommandSpec, name=value)


@pytest.mark.parametrize(
    "path",
    ["", "a", "a.b", ":", "a:", ":b", "a:b:c", "a b:c", "a..b:c", "a:b.", "1a:b", "a-b:c", "a:b()"],
)
@pytest.mark.parametrize("field", ["factory", "probe"])
def test_a_path_that_is_no_import_path_is_refused(field, path):
    with pytest.raises(ValueError, match=rf"BuilderSpec 'x': {field} .* 'package.module:Name'"):
        make(BuilderSpec, **{field: path})


@given(st.text())
def test_any_text_is_an_import_path_or_a_value_error(text):
    try:
        record = make(CommandSpec, factory=text)
    except ValueError:
        return
    module, _, attribute = record.factory.partition(":")
    assert all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")])


@pytest.mark.parametrize("factory", [None, int, lambda: None, b"a:b"])
def test_a_factory_is_named_and_not_given(factory):
    with pytest.raises(TypeError, match="BuilderSpec 'x': factory must be a string"):
        make(BuilderSpec, factory=factory)


@pytest.mark.parametrize("priority", [True, 1.0, "50", None])
def test_a_priority_is_an_int(priority):
    with pytest.raises(TypeError, match="TimerSpec 'x': priority must be an int"):
        make(TimerSpec, priority=priority)


def test_a_summary_is_one_line():
    assert make(TimerSpec, summary="  two words \n").summary == "two words"
    with pytest.raises(ValueError, match="TimerSpec 'x': summary must be a single line"):
        make(TimerSpec, summary="one\ntwo")
    with pytest.raises(TypeError, match="TimerSpec 'x': summary must be a string"):
        make(TimerSpec, summary=None)


# ------------------------------------------------------------------ what is particular to a kind


def test_handles_are_stored_as_pairs_in_lower_case():
    record = make(BuilderSpec, handles=[["CUDA", "Torch"], ("cuda", None), ("cpp", "*")])
    assert record.handles == (("cuda", "torch"), ("cuda", None), ("cpp", "*"))


@pytest.mark.parametrize(
    ("handles", "error"),
    [
        ((), ValueError),
        ("python", TypeError),
        (None, TypeError),
        (("python", None), TypeError),
        ((("python",),), TypeError),
        ((("python", None, 1),), TypeError),
        ((("", None),), ValueError),
        ((("*", None),), ValueError),
        (((None, None),), TypeError),
        ((("python", 3),), TypeError),
        ((("python", ""),), ValueError),
        ({"python": None}, TypeError),
    ],
)
def test_other_handles_are_refused(handles, error):
    with pytest.raises(error, match="BuilderSpec 'x': "):
        make(BuilderSpec, handles=handles)


def test_a_lone_pair_is_told_what_to_write():
    with pytest.raises(TypeError, match=r"write pairs: \('python', None\)"):
        make(BuilderSpec, handles=("python", None))


def test_which_solutions_a_builder_accepts():
    record = make(BuilderSpec, handles=(("cuda", "torch"), ("cpp", "*"), ("python", None)))
    assert record.accepts("cuda", "torch")
    assert not record.accepts("cuda")
    assert not record.accepts("cuda", "tvm-ffi")
    assert record.accepts("cpp")
    assert record.accepts("cpp", "anything")
    assert record.accepts("python")
    assert not record.accepts("python", "torch")


@pytest.mark.parametrize("spec", [TimerSpec, ExecutorSpec])
def test_devices_are_types_and_not_single_devices(spec):
    assert make(spec, devices=["CPU", "cuda"]).devices == ("cpu", "cuda")
    for wrong in (("cuda:0",), ("c pu",), ("",), ()):
        with pytest.raises(ValueError, match="devices"):
            make(spec, devices=wrong)
    for wrong in ("cpu", None, (1,), 3):
        with pytest.raises(TypeError, match="devices"):
            make(spec, devices=wrong)


@pytest.mark.parametrize(
    ("spec", "field"), [(KeyBuilderSpec, "op_types"), (AdapterSpec, "targets")]
)
def test_at_least_one_word_where_nothing_would_be_meant(spec, field):
    assert getattr(make(spec, **{field: iter(["a", " b "])}), field) == ("a", "b")
    for wrong in ((), ("a", " ")):
        with pytest.raises(ValueError, match=field):
            make(spec, **{field: wrong})
    for wrong in ("word", b"word", (b"word",), None):
        with pytest.raises(TypeError, match=field):
            make(spec, **{field: wrong})


def test_an_evaluator_without_patterns_is_a_fallback():
    assert make(EvaluatorSpec).is_fallback
    assert not make(EvaluatorSpec, op_types=("gemm",)).is_fallback
    assert not make(EvaluatorSpec, definitions=("gemm_*",)).is_fallback
    assert not make(EvaluatorSpec, dtypes=("float8*",)).is_fallback
    assert not make(EvaluatorSpec, inputs=("probs",)).is_fallback


def definition(op_type, name="whatever", **tensors):
    spec = {side: {} for side in ("inputs", "outputs")}
    for tensor, dtype in {"x_in": "float32", "y_out": "float32", **tensors}.items():
        side = "outputs" if tensor.endswith("_out") else "inputs"
        spec[side][tensor] = {"shape": ["n"], "dtype": dtype}
    axes = {"n": {"type": "var"}}
    reference = "def run(*tensors):\n    pass\n"
    return Definition(name=name, op_type=op_type, axes=axes, reference=reference, **spec)


def test_one_matching_pattern_suffices_for_an_evaluator():
    record = make(EvaluatorSpec, op_types=("dsa_*", "moe"), definitions=("top_k_?",))
    assert record.accepts(definition("dsa_paged"))
    assert record.accepts(definition("moe"))
    assert record.accepts(definition("gemm", "top_k_1"))
    assert not record.accepts(definition("gemm", "top_k_10"))
    assert not record.accepts(definition("MOE"))
    assert not make(EvaluatorSpec).accepts(definition("moe"))


def test_an_evaluator_may_be_for_element_types_of_inputs():
    record = make(EvaluatorSpec, op_types=("moe",), dtypes=("float8*", "float4*"))
    assert not record.is_fallback
    assert record.accepts(definition("moe"))
    assert record.accepts(definition("gemm", b_in="float8_e4m3fn"))
    assert record.accepts(definition("gemm", b_in="float4_e2m1"))
    assert not record.accepts(definition("gemm", b_out="float8_e4m3fn"))
    assert not record.accepts(definition("gemm", b_in="bfloat16"))


def test_an_evaluator_may_need_certain_inputs_and_outputs():
    record = make(
        EvaluatorSpec, op_types=("sampling",), inputs=("probs*", "logits*"), outputs=("samples*",)
    )
    sampler = {"probs_in": "float32", "samples_out": "int64"}
    assert record.accepts(definition("sampling", **sampler))
    assert record.accepts(definition("sampling", logits_in="float32", samples_out="int64"))
    assert not record.accepts(definition("sampling", probs_in="float32"))
    assert not record.accepts(definition("sampling", samples_out="int64"))
    assert not record.accepts(definition("gemm", **sampler))


def test_what_an_evaluator_needs_may_be_all_that_it_says():
    record = make(EvaluatorSpec, outputs=("samples*",))
    assert not record.is_fallback
    assert record.accepts(definition("anything", samples_out="int64"))
    assert not record.accepts(definition("anything"))


# ------------------------------------------------------------------ availability


def test_availability_is_true_or_false():
    assert Availability(True)
    assert not Availability(False, "no device")
    assert Availability(True, "triton 3.4").reason == "triton 3.4"


@pytest.mark.parametrize("reason", ["", "  ", "\n"])
def test_a_no_has_a_reason(reason):
    with pytest.raises(ValueError, match="needs a reason"):
        Availability(False, reason)


@pytest.mark.parametrize("arguments", [(1,), (None,), ("yes",), (True, None), (True, "", 3)])
def test_an_answer_of_other_types_is_refused(arguments):
    with pytest.raises(TypeError, match="Availability: "):
        Availability(*arguments)


# ------------------------------------------------------------------ what builders are for


def test_by_default_a_builder_is_for_any_device_and_compiles_nothing():
    record = make(BuilderSpec)
    assert (record.devices, record.compiles) == ((), False)
    assert record.serves("cpu")
    assert record.serves("cuda")
    assert record.serves(None)


def test_a_builder_for_some_devices():
    record = make(BuilderSpec, devices=["CUDA", "rocm"], compiles=True)
    assert (record.devices, record.compiles) == (("cuda", "rocm"), True)
    assert [record.serves(device) for device in ("cuda", "rocm", "cpu", None)] == [
        *(True, True, False, True)
    ]


@pytest.mark.parametrize(
    ("fields", "error", "told"),
    [
        ({"devices": "cuda"}, TypeError, "devices must be a tuple"),
        ({"devices": ("cuda:0",)}, ValueError, "write the type alone"),
        ({"devices": ("",)}, ValueError, "devices holds an empty string"),
        ({"compiles": 1}, TypeError, "compiles must be True or False, not 1"),
        ({"compiles": None}, TypeError, "compiles must be True or False"),
    ],
)
def test_other_values_are_refused(fields, error, told):
    with pytest.raises(error, match=f"BuilderSpec 'x': .*{told}"):
        make(BuilderSpec, **fields)


class TestTimers:
    """What a record tells of a timer, so that nobody has to import it to know."""

    def test_nothing_needs_to_be_told(self):
        spec = make(TimerSpec)
        assert (spec.resolution_ms, spec.overhead, spec.repeats, spec.trusting) == (
            *(None, ""),
            *(False, False),
        )
        assert spec.caches == ("cold", "warm")
        assert spec.why_trust is None

    def test_why_it_is_for_trusted_solutions_only(self):
        assert "answered from memory" in make(TimerSpec, repeats=True).why_trust
        assert "only a part" in make(TimerSpec, trusting=True).why_trust

    def test_a_resolution_is_a_float_and_an_overhead_one_line(self):
        spec = make(TimerSpec, resolution_ms=1, overhead=" much ")
        assert (type(spec.resolution_ms), spec.resolution_ms, spec.overhead) == (float, 1.0, "much")

    @pytest.mark.parametrize(
        ("field", "value", "error", "text"),
        [
            ("resolution_ms", "1", TypeError, "must be a number, not str"),
            ("resolution_ms", True, TypeError, "must be a number, not bool"),
            ("resolution_ms", 0, ValueError, "must be finite and above 0, not 0"),
            ("resolution_ms", -1.0, ValueError, "above 0"),
            ("resolution_ms", float("nan"), ValueError, "finite"),
            ("resolution_ms", float("inf"), ValueError, "finite"),
            ("overhead", "two\nlines", ValueError, "single line"),
            ("overhead", None, TypeError, "must be a string"),
            ("repeats", 1, TypeError, "must be True or False"),
            ("trusting", "no", TypeError, "must be True or False"),
            ("caches", (), ValueError, "at least one"),
            ("caches", "cold", TypeError, "must be a tuple"),
            ("caches", ("cold", "lukewarm"), ValueError, "'lukewarm'; allowed: cold, warm"),
        ],
    )
    def test_what_is_not_allowed(self, field, value, error, text):
        with pytest.raises(error, match=f"TimerSpec 'x': {field}.*{text}"):
            make(TimerSpec, **{field: value})
