"""Which calls become workloads, from wherever they come."""

from __future__ import annotations

import logging

import pytest
import torch

from fib_tests.recorded import (
    DECODE,
    GEMM,
    UNTOLD,
    Sink,
    decode_inputs,
    definition,
    gemm_inputs,
    tensor,
    written,
)
from flashinfer_bench.apply import apply
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.loader import load_definition
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.routing.patch_points import PatchPoint, router
from flashinfer_bench.routing.routes import signature_of
from flashinfer_bench.tracing import (
    OnlinePolicy,
    TracingConfig,
    TracingRuntime,
    enable_tracing,
    store,
)

BY_AXES = TracingConfig(filter_policy="keep_first_by_axes")
ALL = TracingConfig(filter_policy="keep_all")

UNKNOWN = (
    signature_of("A", "weight"),
    signature_of("A", weight=None),
    signature_of("x", "y"),
    signature_of("A", "B", "scale"),
)
"""Of functions whose calls are none of `GEMM`."""


def runtime(root, sink=None, config=BY_AXES):
    return TracingRuntime(root, config, store=sink)


class TestForms:
    """Each way to make a call is recorded as the same workload."""

    def test_decorated_functions(self, root, sink):
        traced, (a, b) = apply(GEMM.name), gemm_inputs()
        plain = traced(lambda A, B: "plain")
        swapped = traced(lambda B, A, bias=None, *, fast=False: "swapped")
        resolved = apply(lambda A, B: f"gemm_n{B.shape[0]}_k{B.shape[1]}")
        with runtime(root, sink, ALL) as tracing:
            assert plain(a, B=b) == "plain"
            assert swapped(b, a) == "swapped"
            assert swapped(b, a, fast=True) == "swapped"
            assert swapped(b, a, bias=a) == "swapped"
            assert traced(lambda x, w: "by position")(a, b) == "by position"
            assert traced(lambda *, A, B: "by name")(B=b, A=a) == "by name"
            assert resolved(lambda A, B: "resolved")(a, b) == "resolved"
            assert traced(lambda *args, **kwargs: "anything")(a, B=b) == "anything"
        assert sink.axes() == [{"M": 3}] * 6
        assert tracing.stats()["rejected"] == {"arguments": 2}, "fast and bias are unknown"
        plain(a, b)
        assert len(sink.entries) == 6, "nothing is recorded afterwards"

    def test_patched_functions_are_matched_by_name_alone(self, root, sink):
        """What a definition calls otherwise is something else, whatever its position."""
        unknown = [PatchPoint(None, f"library.run{n}", each) for n, each in enumerate(UNKNOWN)]
        known = PatchPoint(None, "library.mm", signature_of("B", "A", bias=None))
        for point in (*unknown, known):
            router.connect(point)
        with runtime(root, sink, ALL) as tracing:
            assert [point.routes[GEMM.name] for point in unknown] == [None] * len(unknown)
            a, b = gemm_inputs()
            assert known.routes[GEMM.name]((b, a, None), None, lambda *args: "original")
            assert known.routes[GEMM.name]((b, a, a), None, lambda *args: "original")
        assert {*tracing.problems} == {f"{point.label} as {GEMM.name}" for point in unknown}
        assert "no parameter is input 'B'" in tracing.problems[f"library.run0 as {GEMM.name}"]
        assert sink.axes() == [{"M": 3}]
        assert tracing.stats()["rejected"] == {"arguments": 1}

    def test_collect(self, root, sink):
        a, b = gemm_inputs()
        tracing = runtime(root, sink, ALL)
        tracing.collect(GEMM.name, (a, b))
        tracing.collect(GEMM.name, [a, b])
        tracing.collect(GEMM.name, {"A": a, "B": b})
        tracing.collect(GEMM.name, {"A": a}, {"B": b})
        tracing.collect(GEMM.name, (a,), {"B": b})
        for odd in ((), (a,), (a, b, 1, 2), {"A": a}, {"A": a, "X": b}, {"A": a, "B": b, "X": 1}):
            tracing.collect(GEMM.name, odd)
        tracing.collect(GEMM.name, (a, b), {"A": a})
        tracing.collect(GEMM.name, None)  # type: ignore[arg-type]
        tracing.collect("unknown", (a, b))
        tracing.collect(None, (a, b))  # type: ignore[arg-type]
        assert tracing.flush()["written"] == 5
        stats = tracing.stats()
        assert stats["rejected"] == {"arguments": 8}
        assert stats["unknown"] == 2
        assert stats["calls"] == 13


class TestWhatIsKept:
    def test_a_duplicate_is_never_copied(self, root, sink, monkeypatch):
        copies = []
        original = torch.Tensor.to
        monkeypatch.setattr(
            torch.Tensor, "to", lambda self, *a, **k: copies.append(1) or original(self, *a, **k)
        )
        config = TracingConfig("dump_all", filter_policy="keep_first_by_axes")
        with runtime(root, sink, config) as tracing:
            for _ in range(50):
                tracing.collect(GEMM.name, gemm_inputs())
        assert len(copies) == 2
        assert tracing.stats()["duplicates"] == 49

    def test_snapshots_share_nothing(self, root, sink):
        a = gemm_inputs()[0]
        strided = torch.arange(64, dtype=torch.float16).view(8, 8)[:, ::2].requires_grad_()
        with runtime(root, sink, TracingConfig("dump_all")) as tracing:
            tracing.collect(GEMM.name, (a, strided))
            expected = strided.detach().clone()
            with torch.no_grad():
                strided.fill_(7)
        kept = sink.entries[0].inputs_to_dump["B"]
        assert torch.equal(kept, expected)
        assert kept.is_contiguous()
        assert not kept.requires_grad
        assert sink.entries[0].nbytes() == 2 * (a.numel() + strided.numel())

    def test_calls_of_something_else_are_counted(self, root, sink):
        a, b = gemm_inputs()
        args = decode_inputs([1, 1])
        with runtime(root, sink) as tracing:
            for odd in ((a, b.float()), ("x", b), (a[0], b), (a, b[:3])):
                tracing.collect(GEMM.name, odd)
            for wrong in ((args[0][:1], *args[1:]), (*args[:5], None)):
                tracing.collect(DECODE.name, wrong)
            tracing.collect(GEMM.name, (a, b))
        assert tracing.stats()["rejected"] == {
            "dtype": 1,
            "not a tensor": 1,
            "rank": 1,
            "constant axis": 1,
            "constraint": 1,
            "scalar": 1,
        }
        assert sink.axes() == [{"M": 3}], "what was rejected has not used up its size"

    def test_keep_none_is_not_even_wanted(self, root, sink):
        config = {GEMM.name: TracingConfig(filter_policy="keep_none"), UNTOLD.name: ALL}
        with runtime(root, sink, config):
            assert router.wanted() == [UNTOLD.name]


class TestOwnPolicies:
    @pytest.mark.parametrize("where", ["admit", "keep", "drain"])
    def test_one_that_fails(self, root, sink, where, caplog):
        class Broken(OnlinePolicy):
            def admit(self, axes, inputs):
                return True

        def fail(*args):
            raise ZeroDivisionError("broken policy")

        setattr(Broken, where, fail)
        caplog.set_level(logging.WARNING)
        with runtime(root, sink, TracingConfig(filter_policy=Broken)) as tracing:
            for _ in range(3):
                apply(GEMM.name, gemm_inputs(), fallback=lambda *x: None)
        assert tracing.stats()["errors"] == (1 if where == "drain" else 3)
        assert sum("not recorded" in each.message for each in caplog.records) == 1

    def test_one_that_calls_what_is_traced(self, root, sink):
        def pick(inputs):
            apply(GEMM.name, gemm_inputs(9), fallback=lambda *x: None)
            return ["A"]

        with runtime(root, sink, TracingConfig(pick)) as tracing:
            tracing.collect(GEMM.name, gemm_inputs())
        assert sink.axes() == [{"M": 3}]

    def test_mistakes_show_when_tracing_starts(self, root):
        with pytest.raises(ConfigError, match="no tensor input 'X'; it has A, B"):
            enable_tracing(root, {GEMM.name: TracingConfig(["X"])})
        assert not router.in_use


class TestErrors:
    def test_a_store_that_fails_costs_its_entries(self, root, caplog):
        sink = Sink(OSError(28, "No space left on device"))
        tracing = runtime(root, sink).start()
        for m in range(1, 4):
            tracing.collect(GEMM.name, gemm_inputs(m))
        assert tracing.flush() == {"entries": 3, "written": 0, "known": 0, "lost": 3}
        sink.error = None
        tracing.collect(GEMM.name, gemm_inputs(9))
        tracing.stop()
        stats = tracing.stats()
        assert (stats["written"], stats["lost"]) == (1, 3)
        assert sum("could not be written" in each.message for each in caplog.records) == 1

    def test_arguments_that_cannot_even_be_listed(self, root, sink):
        def failing():
            yield gemm_inputs()[0]
            raise RuntimeError("its own")

        tracing = TracingRuntime(root, store=sink)
        for given in (failing(), 3, None, iter(())):
            tracing.collect(GEMM.name, given)
        assert tracing.stats()["rejected"] == {"arguments": 4}
        assert not sink.axes()


def test_compiled_programs_are_recorded(root, sink):
    """torch.compile breaks its graph at what is traced, and looks into nothing of it."""

    @apply(GEMM.name)
    def gemm(A, B):
        return A @ B.T

    @torch.compile(backend="eager")
    def program(A, B):
        return gemm(A + 1, B) * 2

    a, b = gemm_inputs()
    with runtime(root, sink) as tracing:
        for m in (3, 3, 4):
            args = gemm_inputs(m)
            assert torch.equal(program(*args), (args[0] + 1) @ args[1].T * 2)
    assert sink.axes() == [{"M": 3}, {"M": 4}]
    assert tracing.stats()["errors"] == 0
    assert torch.equal(program(a, b), (a + 1) @ b.T * 2)


# --------------------------------------------------------------- definitions that change meanwhile


RENAMED = definition(
    GEMM.name, {"A": tensor("M", "K"), "W": tensor("N", "K")}, {"C": tensor("M", "N")}, N=8, K=4
)
OTHER_AXES = definition(
    GEMM.name, {"A": tensor("M", "K"), "B": tensor("N", "K")}, {"C": tensor("M", "N")}, K=4
)
TIED = definition(
    GEMM.name, {"A": tensor("M", "K"), "B": tensor("N", "K")}, {"C": tensor("M", "N")}, ("M >= 1",),
    N=8, K=4,
)  # fmt: skip


def step(tracing, number):
    tracing.collect(GEMM.name, gemm_inputs(number))
    tracing.collect(DECODE.name, decode_inputs([number]))
    return tracing.flush()


def file_of(root):
    return root / "definitions" / "op" / f"{GEMM.name}.json"


@pytest.mark.parametrize("changed", [RENAMED, OTHER_AXES, TIED])
@pytest.mark.parametrize("before", [True, False])
def test_what_does_not_fit_any_more_is_not_written(root, changed, before):
    tracing = TracingRuntime(root, TracingConfig("dump_all"))
    assert not before or step(tracing, 2)["written"] == 2
    file_of(root).write_text(changed.model_dump_json())
    assert {"written": 1, "lost": 1}.items() <= step(tracing, 3).items()
    file_of(root).write_text(GEMM.model_dump_json())
    assert step(tracing, 4)["written"] == 2
    assert len(written(root)) == 3 + 2 * before
    assert TraceSet.from_path(root).workloads


@pytest.mark.parametrize("text", [None, "{", GEMM.model_copy(update={"description": "x"})])
def test_what_says_nothing_else_is_no_change(root, text):
    """It is gone, cannot be read, or only its words are others."""
    tracing = TracingRuntime(root, TracingConfig("dump_all"))
    if text is None:
        file_of(root).unlink()
    else:
        file_of(root).write_text(text if isinstance(text, str) else text.model_dump_json())
    assert step(tracing, 2)["written"] == 2


def test_only_those_of_the_recorded_calls_are_read_anew(root, monkeypatch):
    """Reading hundreds of definitions at each flush would hold up the engine."""
    read = []

    def load(path, *what):
        read.append(path.stem)
        return load_definition(path, *what)

    monkeypatch.setattr(store, "load_definition", load)
    tracing = TracingRuntime(root, TracingConfig("dump_all"))
    tracing.collect(GEMM.name, gemm_inputs(2))
    tracing.flush()
    assert read == [GEMM.name]


def test_definitions_that_are_in_no_file(tmp_path):
    dataset = TraceSet(root=tmp_path, definitions={GEMM.name: GEMM, DECODE.name: DECODE})
    assert step(TracingRuntime(dataset, TracingConfig()), 2)["written"] == 2
