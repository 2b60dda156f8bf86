"""Rebuilding a runtime: what calls see meanwhile, and what is left of the old."""

from __future__ import annotations

import gc
import os
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")

from fib_tests.runtime_dataset import Dataset  # noqa: E402
from flashinfer_bench.apply import apply, enable_apply  # noqa: E402
from flashinfer_bench.apply import runtime as runtime_module  # noqa: E402
from flashinfer_bench.errors import DatasetNotFoundError  # noqa: E402
from flashinfer_bench.routing.patch_points import router  # noqa: E402

pytestmark = [pytest.mark.plugin("python"), pytest.mark.usefixtures("on_the_cpu")]

FIRST, SECOND = 100, 1000


@pytest.fixture
def dataset(tmp_path):
    return Dataset(tmp_path / "dataset").definition().add("first", 2, tag=FIRST)


def improve(dataset):
    dataset.add("second", 2, 3, tag=SECOND, latency_ms=0.5)


@apply("double")
def double(x):
    return x * 2


def tag_of(function, n=2):
    return int(function(torch.zeros(n, 4))[0, 0])


def single(x):
    return apply("double", (x,), None, lambda x: x * 2)


class TestWhatHasChanged:
    def test_is_used_afterwards(self, dataset):
        runtime = enable_apply(dataset.root)
        assert (tag_of(double), tag_of(single), tag_of(double, 3)) == (FIRST, FIRST, 0)
        improve(dataset)
        runtime.rebuild()
        assert (tag_of(double), tag_of(single), tag_of(double, 3)) == (SECOND, SECOND, SECOND)

    def test_may_be_a_new_definition(self, dataset):
        runtime = enable_apply(dataset.root)
        twice = apply("twice")(lambda x: x * 2)
        assert tag_of(twice) == 0
        dataset.definition("twice").add("twice_it", 2, of="twice", tag=7)
        runtime.rebuild()
        assert tag_of(twice) == 7

    def test_may_be_the_dataset(self, dataset, tmp_path):
        other = Dataset(tmp_path / "other").definition().add("other", 2, tag=5)
        runtime = enable_apply(dataset.root)
        runtime.rebuild(other.root)
        assert tag_of(double) == 5
        runtime.rebuild()
        assert tag_of(double) == 5

    def test_of_an_outer_runtime_is_seen_when_the_inner_one_stops(self, dataset, tmp_path):
        inner = Dataset(tmp_path / "inner").definition().add("inner", 2, tag=5)
        with enable_apply(dataset.root) as outer:
            with enable_apply(inner.root):
                improve(dataset)
                outer.rebuild()
                assert tag_of(double) == 5
            assert tag_of(double) == SECOND

    def test_counts_go_on(self, dataset):
        runtime = enable_apply(dataset.root)
        tag_of(double)
        runtime.rebuild()
        tag_of(double)
        assert runtime.stats()["double"].hits == 2


class TestFailures:
    def test_of_the_dataset_change_nothing(self, dataset, tmp_path):
        runtime = enable_apply(dataset.root)
        with pytest.raises(DatasetNotFoundError):
            runtime.rebuild(tmp_path / "nowhere")
        assert tag_of(double) == FIRST
        improve(dataset)
        runtime.rebuild()
        assert tag_of(double) == SECOND


class TestUnderLoad:
    def test_a_call_that_is_running_ends_with_what_it_began_with(self, dataset):
        dataset.add(
            "waits",
            5,
            source="import gate\n\ndef run(x):\n    return gate.wait(x) + {tag}\n",
            tag=3,
        )
        inside, go_on = threading.Event(), threading.Event()

        class Gate:
            @staticmethod
            def wait(x):
                inside.set()
                assert go_on.wait(30)
                return x

        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(__import__("sys").modules, "gate", Gate)
            runtime = enable_apply(dataset.root)
            found = []
            thread = threading.Thread(target=lambda: found.append(tag_of(double, 5)))
            thread.start()
            assert inside.wait(30)
            improve(dataset)
            runtime.rebuild()
            runtime.stop()
            gc.collect()
            go_on.set()
            thread.join()
        assert found == [3]


class TestMemory:
    def test_the_old_is_dropped_when_nobody_uses_it(self, dataset):
        runtime = enable_apply(dataset.root)
        tag_of(double)
        tag_of(single)
        old = weakref.ref(runtime._generation)
        runtime.rebuild()
        tag_of(double)
        gc.collect()
        assert old() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
class TestFork:
    def in_child(self, work):
        """Return the exit status of a forked child: what `work` returns, or 99 if it raises."""
        child = os.fork()
        if child == 0:
            status = 99
            try:
                status = work()
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def test_a_child_uses_what_its_parent_enabled_and_may_change_it_for_itself(self, dataset):
        runtime = enable_apply(dataset.root)

        def work():
            assert tag_of(double) == FIRST
            dataset.add("own", 2, tag=7, latency_ms=0.5)
            runtime.rebuild()
            return tag_of(double)

        assert self.in_child(work) == 7
        assert tag_of(double) == FIRST

    def test_while_a_thread_of_the_parent_rebuilds(self, dataset):
        runtime = enable_apply(dataset.root)
        tag_of(double)
        held, done = threading.Event(), threading.Event()

        def hold():
            with runtime_module.changing, router._lock:
                held.set()
                done.wait(60)

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(30)

        def work():
            runtime.rebuild()
            return tag_of(double)

        try:
            assert self.in_child(work) == FIRST
        finally:
            done.set()
            thread.join()
