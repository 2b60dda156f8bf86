"""The catalog: order, selection, and what it says when there is nothing to select."""

from __future__ import annotations

import dataclasses
import sys
import threading
import types
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_tests.threads import at_once
from flashinfer_bench.errors import CapabilityError, PluginLoadError
from flashinfer_bench.plugins import (
    Availability,
    BuilderSpec,
    Catalog,
    EvaluatorSpec,
    ExecutorSpec,
    PluginStatus,
    TimerSpec,
)
from flashinfer_bench.plugins.registry import Probe


@pytest.fixture(autouse=True)
def probes(monkeypatch):
    """The module in which the records of this file have their probes."""
    module = types.ModuleType("catalog_probes")
    module.yes = lambda: Availability(True)
    module.no = lambda: Availability(False, "no CUDA device.", "install the driver")
    monkeypatch.setitem(sys.modules, "catalog_probes", module)


YES, NO = "catalog_probes:yes", "catalog_probes:no"


def builder(name, *handles, **more):
    return BuilderSpec(name=name, handles=handles or ((name, None),), factory="m:B", **more)


def timer(name, *devices, **more):
    return TimerSpec(name=name, devices=devices or ("cpu",), factory="m:T", **more)


def definition(name="gemm_n4", op_type="gemm"):
    return SimpleNamespace(name=name, op_type=op_type, inputs={}, outputs={})


def status(state, name="mojo", reason="failed to load: ImportError: no mojo", **more):
    fields = {"distribution": f"fib-builder-{name}", "version": "0.1", "target": name, **more}
    return PluginStatus(name=name, state=state, reason=reason, **fields)


names = st.text("abc", min_size=1, max_size=3)
ranked = st.dictionaries(names, st.integers(-3, 3), max_size=12)


@given(ranked, st.randoms())
def test_the_order_depends_on_priority_and_name_alone(priorities, random):
    records = [timer(name, priority=priority) for name, priority in priorities.items()]
    random.shuffle(records)
    found = [(-entry.spec.priority, entry.name) for entry in Catalog.of(*records).timers]
    assert found == sorted((-priority, name) for name, priority in priorities.items())


@given(ranked, st.sets(names))
def test_the_first_usable_one_is_selected(priorities, unusable):
    records = [
        timer(name, priority=priority, probe=NO if name in unusable else None)
        for name, priority in priorities.items()
    ]
    catalog = Catalog.of(*records)
    usable = sorted((-p, name) for name, p in priorities.items() if name not in unusable)
    if usable:
        assert catalog.timers.for_device("cpu").name == usable[0][1]
    else:
        with pytest.raises(CapabilityError):
            catalog.timers.for_device("cpu")


@given(st.lists(names, max_size=8))
def test_a_name_is_in_the_catalog_exactly_if_it_is_claimed_once(claims):
    catalog = Catalog.of(*(timer(name, priority=i) for i, name in enumerate(claims)))
    once = {name for name in claims if claims.count(name) == 1}
    assert {entry.name for entry in catalog.timers} == once
    assert {conflict.name for conflict in catalog.conflicts} == set(claims) - once
    assert sum(len(each.claims) for each in catalog.conflicts) == len(claims) - len(once)


def test_find_names_what_there_is_and_what_is_near():
    catalog = Catalog.of(timer("cpu"), timer("cupti", priority=60))
    with pytest.raises(CapabilityError) as raised:
        catalog.find("timer", "cupty")
    assert raised.value.message == (
        "No timer 'cupty'. Did you mean 'cupti'? Available timers: cupti, cpu."
    )
    assert raised.value.hint == "Run `fib plugins list --kind timer` to see what is installed."


NO_MOJO = "Plugin fib-builder-mojo 0.1 failed to load: ImportError: no mojo."
BOTH = "that might provide it: fib-builder-mojo 0.1, fib-builder-other 0.1."


@pytest.mark.parametrize(
    ("state", "wanted", "told", "hint"),
    [
        ("broken", "mojo", NO_MOJO, "doctor mojo`."),
        ("blocked", "MOJO", NO_MOJO, "list --kind builder` to see what is installed."),
        ("broken", "rust", f"Broken plugins {BOTH}", "doctor`."),
    ],
)
def test_find_names_the_plugins_that_might_have_provided_it(state, wanted, told, hint):
    plugins = (status(state), status(state, "other"))
    catalog = dataclasses.replace(Catalog.of(builder("python")), plugins=plugins)
    with pytest.raises(CapabilityError) as raised:
        catalog.find("builder", wanted)
    assert raised.value.message == (
        f"No builder {wanted.lower()!r}. Available builders: python. {told}"
    )
    assert raised.value.hint == f"Run `fib plugins {hint}"


def test_a_builder_is_selected_by_language_and_binding():
    catalog = Catalog.of(
        builder("torch", ("cuda", "torch"), ("cpp", "torch")),
        builder("tvm-ffi", ("cuda", None), ("cuda", "tvm-ffi"), ("cpp", "*")),
    )
    assert catalog.select_builder("cuda", "torch").name == "torch"
    assert catalog.select_builder("cuda").name == "tvm-ffi"
    assert catalog.select_builder("CUDA", "TVM-FFI").name == "tvm-ffi"
    assert catalog.select_builder("cpp", "other").name == "tvm-ffi"
    with pytest.raises(CapabilityError, match="No builder for language 'cuda' with binding 'x'"):
        catalog.select_builder("cuda", "x")


def test_a_language_that_cannot_be_built_here_is_told_with_the_reasons():
    catalog = Catalog.of(
        builder("triton", probe=NO), builder("alt", ("triton", None), probe="missing_module:check")
    )
    with pytest.raises(CapabilityError) as raised:
        catalog.select_builder("triton", solution="s")
    message = raised.value.message
    assert message.startswith(
        "No builder for language 'triton' (solution 's') can be used on this machine. alt (given): "
        "the probe missing_module:check failed: ModuleNotFoundError: "
    )
    assert message.endswith("triton (given): no CUDA device.")
    assert raised.value.hint == "install the driver"


def executor(name, *devices, **more):
    return ExecutorSpec(name=name, devices=devices or ("cpu",), factory="m:E", **more)


def test_a_builder_is_selected_for_the_device():
    """A language that needs CUDA, and one that there is a way to interpret on the CPU."""
    catalog = Catalog.of(
        builder("triton", ("triton", "*"), devices=("cuda",), priority=60),
        builder("interpreter", ("triton", "*"), devices=("cpu",), probe=NO),
        builder("cuda", ("cuda", None), devices=("cuda",)),
        builder("cpp", ("cpp", None)),
    )
    for device in ("cuda", "cuda:3", "CUDA", None):
        assert catalog.select_builder("triton", device=device).name == "triton"
        assert catalog.select_builder("cpp", device=device).name == "cpp"
    with pytest.raises(CapabilityError) as raised:
        catalog.select_builder("cuda", solution="s", device="cpu")
    assert raised.value.message == (
        "No builder for language 'cuda' (solution 's') supports device 'cpu'. "
        "cuda (given) is for cuda."
    )
    assert raised.value.hint == "choose another device, such as cuda"


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "CUDA:7"])
def test_the_type_of_the_device_decides(device):
    catalog = Catalog.of(timer("a"), timer("b", "cuda", "cpu"), executor("e", "cuda"))
    assert catalog.timers.for_device(device).name == "b"
    assert catalog.timers.for_device("cpu").name == "a"
    assert catalog.executors.for_device(device, " E").name == "e"


@pytest.mark.parametrize(
    ("device", "name", "told"),
    [
        ("cuda:1", "a", "Timer 'a' is for cpu, not for 'cuda'. Available timers for 'cuda': b."),
        ("cpu", "c", "No timer 'c' can be used on this machine. c (given): no CUDA device."),
    ],
)
def test_a_named_one_is_not_replaced(device, name, told):
    catalog = Catalog.of(timer("a"), timer("b", "cuda"), timer("c", probe=NO))
    with pytest.raises(CapabilityError) as raised:
        catalog.timers.for_device(device, name)
    assert raised.value.message == told


def evaluator(name, **more):
    return EvaluatorSpec(name=name, factory="m:E", **more)


def test_one_that_is_meant_for_it_goes_before_every_fallback():
    catalog = Catalog.of(
        evaluator("fallback", priority=100),
        evaluator("by-op", op_types=("gemm",), priority=0),
        evaluator("by-name", definitions=("moe_*",), priority=0),
    )
    assert catalog.select_evaluator(definition()).name == "by-op"
    assert catalog.select_evaluator(definition("moe_x", "moe")).name == "by-name"
    assert catalog.select_evaluator(definition("norm", "rmsnorm")).name == "fallback"


def test_a_fallback_does_not_stand_in_for_one_that_cannot_be_used():
    catalog = Catalog.of(evaluator("default"), evaluator("strict", op_types=("gemm",), probe=NO))
    with pytest.raises(CapabilityError) as raised:
        catalog.select_evaluator(definition())
    assert raised.value.message == (
        "No evaluator for definition 'gemm_n4' (op type 'gemm') can be used on this machine. "
        "strict (given): no CUDA device."
    )


def test_a_fallback_does_not_stand_in_for_one_that_is_refused():
    claims = (evaluator("e", op_types=("gemm",)), evaluator("e", op_types=("gemm",), priority=1))
    with pytest.raises(CapabilityError, match="Evaluator 'e' is registered by"):
        Catalog.of(evaluator("default"), *claims).select_evaluator(definition())


@pytest.mark.parametrize(
    ("factory", "told"),
    [
        ("no_such_module:x", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("json:no_such_name", "AttributeError: module 'json' has no attribute 'no_such_name'"),
        ("catalog_exits:x", "SystemExit: it called sys.exit(2)"),
    ],
)
def test_code_that_cannot_be_imported_names_its_distribution(factory, told, tmp_path, monkeypatch):
    (tmp_path / "catalog_exits.py").write_text("raise SystemExit(2)")
    monkeypatch.syspath_prepend(tmp_path)
    record = dataclasses.replace(timer("t"), factory=factory)
    (entry,) = Catalog.of(record, distribution="fib-x", version="0.3").timers
    with pytest.raises(PluginLoadError) as raised:
        entry.load()
    assert raised.value.message == (
        f"The timer 't' of fib-x 0.3 cannot be imported from {factory}: {told}"
    )
    assert raised.value.__cause__ is not None


def test_a_survey_asks_every_probe_and_finds_what_cannot_be_used():
    entries = [
        *Catalog.of(timer("a", probe=NO), builder("a", probe=NO), distribution="none"),
        *Catalog.of(timer("b", probe=NO), timer("c", probe=YES), distribution="some"),
    ]
    origins = (("given", "none"), ("given", "some"), ("empty", "none"))
    plugins = [PluginStatus(name=name, distribution=origin) for name, origin in origins]
    catalog = dataclasses.replace(Catalog.build(entries), plugins=(*plugins, status("broken")))
    surveyed = catalog.survey()
    assert [each.state for each in surveyed] == ["unavailable", "ok", "ok", "broken"]
    assert surveyed[0].reason == "cannot be used here: no CUDA device."
    assert [each.state for each in catalog.plugins] == ["ok", "ok", "ok", "broken"]


def test_an_interrupt_while_importing_reaches_the_user(tmp_path, monkeypatch):
    (tmp_path / "catalog_interrupts.py").write_text("raise KeyboardInterrupt")
    monkeypatch.syspath_prepend(tmp_path)
    record = dataclasses.replace(timer("t"), factory="catalog_interrupts:x")
    with pytest.raises(KeyboardInterrupt):
        Catalog.of(record).timers[0].load()


# ------------------------------------------------------------------------------------------ probes


LONG = 60.0  # a limit that no test waits for


@pytest.fixture
def probe(monkeypatch):
    """Put a function where a probe can be imported from; returns its path."""

    def place(function, name="check"):
        module = types.ModuleType("probed_module")
        setattr(module, name, function)
        monkeypatch.setitem(sys.modules, "probed_module", module)
        return f"probed_module:{name}"

    return place


def test_many_threads_that_ask_get_one_answer(probe):
    calls = []

    def check():
        calls.append(1)
        return Availability(True, f"call {len(calls)}")

    asked = Probe(probe(check), LONG)
    answers = at_once(8, asked.answer)
    assert calls == [1]
    assert {answer.reason for answer in answers} == {"call 1"}


def test_a_probe_that_takes_too_long_counts_as_no_and_stays_no(probe):
    release, finished = threading.Event(), threading.Event()

    def check():
        release.wait(LONG)
        finished.set()
        return Availability(True)

    asked = Probe(probe(check), 0.05)
    answer = asked.answer()
    assert not answer
    assert answer.reason == "the probe probed_module:check did not answer within 0.05 s"
    assert answer.remedy == "increase FIB_PROBE_TIMEOUT_S"
    assert asked.failure is None
    release.set()
    assert finished.wait(LONG)
    asked._thread.join(LONG)
    assert asked.answer() is answer  # what came too late changes nothing


def test_probes_are_asked_at_the_same_time(probe):
    together = threading.Barrier(12)

    def check():
        together.wait(LONG)  # passes only once all twelve are in here
        return Availability(True)

    path = probe(check)
    timers = [
        TimerSpec(name=f"t{n}", devices=("cpu",), factory="m:T", probe=path) for n in range(12)
    ]
    catalog = Catalog.of(*timers, timeout_s=LONG)
    catalog.check_all()
    assert all(entry.availability() for entry in catalog)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("bad\nluck"), "ValueError: bad luck"),
        (SystemExit(3), "SystemExit: it called sys.exit(3)"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (type("PanicException", (BaseException,), {})("panic"), "PanicException: panic"),
    ],
)
def test_whatever_a_probe_raises_is_a_no(probe, error, told):
    def check():
        raise error

    asked = Probe(probe(check), LONG)
    assert asked.answer().reason == f"the probe probed_module:check failed: {told}"
    assert asked.failure is error


def test_no_thread_to_be_had_is_a_no(probe, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    asked = Probe(probe(lambda: Availability(True)), LONG)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert asked.answer().reason == "the probe could not be started: can't start new thread"
    assert asked.answer() is asked.answer()
