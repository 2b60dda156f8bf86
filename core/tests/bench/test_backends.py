from __future__ import annotations

from typing import Any

import pytest

from flashinfer_bench.bench.backends import choose_devices, choose_timer, make_executor
from flashinfer_bench.bench.executors.base import Executor
from flashinfer_bench.errors import CapabilityError, PluginLoadError
from flashinfer_bench.plugins import Availability, Catalog, ExecutorSpec, TimerSpec


class TestDevices:
    @pytest.fixture
    def cards(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        def there_are(*names: str) -> None:
            monkeypatch.setattr("flashinfer_bench.tensors.list_cuda_devices", lambda: list(names))

        return there_are

    def test_best_there_is(self, cards: Any) -> None:
        cards()
        assert choose_devices(None) == ["cpu"]
        cards("cuda:0", "cuda:1")
        assert choose_devices(None) == ["cuda:0", "cuda:1"]

    def test_the_one_asked_for(self, cards: Any) -> None:
        cards("cuda:0", "cuda:1")
        assert choose_devices("cpu") == ["cpu"]
        assert choose_devices("cuda") == ["cuda:0"]
        assert choose_devices("cuda:1") == ["cuda:1"]

    def test_absent_one(self, cards: Any) -> None:
        cards()
        with pytest.raises(CapabilityError, match=r"'cuda:0' is not there; .* no CUDA device"):
            choose_devices("cuda:0")
        cards("cuda:0")
        with pytest.raises(CapabilityError, match="this machine has cuda:0"):
            choose_devices("cuda:1")


def no_driver() -> Availability:
    return Availability(False, "no driver")


def timers(monkeypatch: pytest.MonkeyPatch) -> Catalog:
    import sys
    import types

    module = types.ModuleType("a_timer_plugin")
    module.no_driver = no_driver  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_timer_plugin", module)
    return Catalog.of(
        TimerSpec(
            name="fine",
            factory="a:B",
            devices=("cuda",),
            priority=90,
            probe="a_timer_plugin:no_driver",
        ),
        TimerSpec(name="coarse", factory="a:B", devices=("cuda",)),
        TimerSpec(name="wall", factory="a:B", devices=("cpu",)),
    )


class TestTimer:
    def test_weaker_one_is_a_loud_choice(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level("WARNING"):
            assert choose_timer(timers(monkeypatch), "cuda:1") == "coarse"
        assert caplog.messages == [
            "timing cuda:1 with 'coarse', because 'fine' cannot be used: no driver"
        ]

    def test_best_one_needs_no_words(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level("WARNING"):
            assert choose_timer(timers(monkeypatch), "cpu") == "wall"
            assert choose_timer(timers(monkeypatch), "cuda", "coarse") == "coarse"
        assert caplog.messages == []

    @pytest.mark.parametrize("name", ["fine", "wall", "absent"])
    def test_no_substitute_for_one_asked_for(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(CapabilityError, match=name):
            choose_timer(timers(monkeypatch), "cuda", name)


class TestExecutor:
    def test_installed_ones(self) -> None:
        from flashinfer_bench.plugins import default_catalog

        executor = make_executor(default_catalog(), "cpu", "spawn")
        assert isinstance(executor, Executor)
        assert (executor.device, executor.name) == ("cpu", "spawn")

    def test_what_is_none(self) -> None:
        catalog = Catalog.of(ExecutorSpec(name="odd", factory="math:sqrt", devices=("cpu",)))
        with pytest.raises(PluginLoadError, match="math:sqrt is not a subclass of Executor"):
            make_executor(catalog, "cpu")

    def test_unknown_name(self) -> None:
        with pytest.raises(CapabilityError, match="absent"):
            make_executor(Catalog.of(), "cpu", "absent")
