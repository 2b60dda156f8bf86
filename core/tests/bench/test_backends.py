import pytest

from flashinfer_bench.bench.backends import choose_devices, likely_devices
from flashinfer_bench.bench.timing import pick_timer
from flashinfer_bench.errors import CapabilityError, ConfigError
from flashinfer_bench.plugins import Availability, Catalog, TimerSpec


class TestDevices:
    @pytest.fixture
    def cards(self, monkeypatch):
        def there_are(*names):
            monkeypatch.setattr("flashinfer_bench.tensors.list_cuda_devices", lambda: list(names))

        return there_are

    def test_best_there_is(self, cards):
        cards()
        assert choose_devices(None) == ["cpu"]
        cards("cuda:0", "cuda:1")
        assert choose_devices(None) == ["cuda:0", "cuda:1"]

    def test_absent_one(self, cards):
        cards()
        with pytest.raises(CapabilityError, match=r"no device 'cuda:0'; .* no CUDA device"):
            choose_devices("cuda:0")
        cards("cuda:0")
        with pytest.raises(CapabilityError, match="this machine has cuda:0"):
            choose_devices("cuda:1")

    @pytest.mark.parametrize(
        ("visible", "count"),
        [(None, 2), ("0,1,0", 2), ("1", 1), ("", 0), ("-1", 0), ("0,-1,1", 1), ("NoDevFiles", 0)],
    )
    def test_what_is_likely_without_torch(self, monkeypatch, visible, count):
        monkeypatch.setattr("flashinfer_bench.tensors.nvidia_gpus", lambda: ("one", "two"))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert likely_devices(None) == (["cuda:0", "cuda:1"][:count] or ["cpu"])
        assert likely_devices("cuda,cuda:1,cpu") == ["cuda:0", "cuda:1", "cpu"]


CUDA = {"devices": ("cuda",), "factory": "a:B"}


def no_driver():
    return Availability(False, "no driver")


def timers(monkeypatch, probe=no_driver):
    import sys
    import types

    module = types.ModuleType("a_timer_plugin")
    module.no_driver = probe  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_timer_plugin", module)
    return Catalog.of(
        TimerSpec(name="fine", priority=90, probe="a_timer_plugin:no_driver", **CUDA),
        TimerSpec(name="coarse", **CUDA),
        TimerSpec(name="wall", factory="a:B", devices=("cpu",)),
    )


class TestFit:
    """Timers that only trusted solutions may be timed with, or only with some caches."""

    @pytest.fixture
    def catalog(self):
        return Catalog.of(
            TimerSpec(name="again", repeats=True, caches=("cold",), priority=90, **CUDA),
            TimerSpec(name="partial", trusting=True, priority=80, **CUDA),
            TimerSpec(name="warmth", caches=("warm",), priority=70, **CUDA),
            TimerSpec(name="plain", **CUDA),
        )

    def test_only_by_name(self, catalog, caplog):
        for trust in ("full", "off"):
            assert pick_timer(catalog, "cuda:0", trust=trust)[0].name == "plain"
        assert pick_timer(catalog, "cuda:0", cache="warm")[0].name == "warmth"
        assert caplog.messages == []

    def test_repeated_calls_are_refused_unless_solutions_are_trusted(self, catalog):
        with pytest.raises(ConfigError, match="answered from memory; --trust full") as caught:
            pick_timer(catalog, "cuda:0", "again")
        assert caught.value.hint is not None
        assert "--trust off" in caught.value.hint
        assert "another timer: plain" in caught.value.hint
        assert pick_timer(catalog, "cuda:0", "again", trust="off")[0].name == "again"

    def test_caches_have_to_be_those_asked_for(self, catalog):
        with pytest.raises(ConfigError, match="'again' supports only cold caches") as caught:
            pick_timer(catalog, "cuda", "again", trust="off", cache="warm")
        assert "--cache cold" in str(caught.value.hint)
        with pytest.raises(ConfigError, match="'warmth' supports only warm caches, not cold"):
            pick_timer(catalog, "cuda", "warmth")


def test_the_note_of_a_weaker_timer_says_why_and_what_to_do(monkeypatch, caplog):
    """What is to be stored with the latencies of a weaker timer."""
    answer = Availability(False, "no driver", "get one")
    timer, note = pick_timer(timers(monkeypatch, lambda: answer), "cuda:1")
    wanted = "timing cuda:1 with 'coarse', because 'fine' cannot be used: no driver (get one)"
    assert (timer.name, note) == ("coarse", wanted)
    assert caplog.messages == [wanted]
