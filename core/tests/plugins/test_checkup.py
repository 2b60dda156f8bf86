"""The closer look: requirements, code that cannot be imported, and what is merely worth knowing."""

from __future__ import annotations

import sys
import types

import pytest

from flashinfer_bench._version import __version__
from flashinfer_bench.plugins import Availability, Catalog, PluginStatus, Settings, TimerSpec
from flashinfer_bench.plugins.checkup import check_up, idle_names


@pytest.fixture(autouse=True)
def code(monkeypatch):
    module = types.ModuleType("checkup_code")

    def raises():
        raise OSError("broken")

    module.Timer = type("Timer", (), {})
    module.no = lambda: Availability(False, "no device", "get one")
    module.raises = raises
    monkeypatch.setitem(sys.modules, "checkup_code", module)


@pytest.fixture
def requiring(tmp_path, monkeypatch):
    """Install a distribution, as far as its metadata go, that requires what it is given."""

    def place(*requirements):
        info = tmp_path / "checked-1.0.dist-info"
        info.mkdir()
        lines = "".join(f"Requires-Dist: {text}\n" for text in requirements)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: checked\nVersion: 1.0\n{lines}"
        )
        monkeypatch.syspath_prepend(tmp_path)

    return place


def examined(factory="checkup_code:Timer", probe=None, **fields):
    record = TimerSpec(name="t", devices=("cpu",), factory=factory, probe=probe)
    catalog = Catalog.of(record, distribution="checked")
    return check_up(catalog, PluginStatus(name="given", distribution="checked", **fields))


def test_a_plugin_in_good_order_has_no_problems():
    checkup = examined()
    assert checkup.status.state == "ok"
    assert (checkup.problems, checkup.notes) == ((), ())


def test_what_discovery_found_is_a_problem_with_its_traceback():
    checkup = examined(state="broken", reason="failed to load: x", traceback="Traceback …")
    (problem,) = checkup.problems
    assert (problem.message, problem.traceback) == ("failed to load: x", "Traceback …")


def test_a_blocked_plugin_is_left_alone():
    checkup = examined("no_such_module:x", state="blocked", reason="is disabled")
    assert (checkup.problems, checkup.status.state) == ((), "blocked")


def test_code_that_cannot_be_imported_makes_it_broken():
    checkup = examined("checkup_code:Tmier")
    (problem,) = checkup.problems
    assert problem.message == (
        "provides timer 't', which cannot be imported: AttributeError: "
        "module 'checkup_code' has no attribute 'Tmier'"
    )
    assert "AttributeError" in problem.traceback
    assert checkup.status.state == "broken"
    assert checkup.status.reason == problem.message


def test_code_that_cannot_be_used_here_is_not_imported_and_no_problem():
    checkup = examined("no_such_module:x", "checkup_code:no", state="unavailable")
    assert checkup.problems == ()
    assert checkup.status.state == "unavailable"
    assert checkup.notes == ("timer 't' cannot be used here: no device (get one)",)


def test_a_probe_that_fails_is_a_problem():
    checkup = examined(probe="checkup_code:raises")
    (problem,) = checkup.problems
    assert problem.message == (
        "provides timer 't', but the probe checkup_code:raises failed: OSError: broken"
    )
    assert 'raise OSError("broken")' in problem.traceback
    assert checkup.notes == ()


def test_heavy_imports_are_noted():
    (note,) = examined(heavy_imports=("torch", "triton")).notes
    assert note.startswith("loading it imports torch, triton, which slows down every start")


@pytest.mark.parametrize(
    "requirement",
    [
        "flashinfer-bench-core",
        f"flashinfer-bench-core=={__version__}",
        "Flashinfer_Bench.Core>=0.0.1",
        "flashinfer-bench-core[torch]>=0.0.1",
        "another-distribution==99",
    ],
)
def test_requirements_that_are_met_or_not_ours(requiring, requirement):
    requiring(requirement)
    assert examined().problems == ()


def test_a_requirement_of_another_core_is_a_problem(requiring):
    requiring("flashinfer-bench-core<0.0.1", "flashinfer-bench-core>=99; extra == 'later'")
    messages = [problem.message for problem in examined().problems]
    assert messages[0] == (
        f"requires flashinfer-bench-core<0.0.1, and this is flashinfer-bench-core {__version__}"
    )


def test_a_requirement_of_an_extra_is_none_of_the_plugin(requiring):
    requiring("flashinfer-bench-core>=99; extra == 'later'")
    assert examined().problems == ()


def test_a_requirement_that_cannot_be_read_is_a_problem(requiring):
    requiring("flashinfer-bench-core ~~ 3")
    (problem,) = examined().problems
    assert problem.message.startswith("has a requirement that cannot be read: 'flashinfer-bench")


def test_names_that_disable_nothing():
    plugins = [PluginStatus(name="triton", distribution="fib-builder-triton")]
    settings = Settings(disabled=("Triton", "trition", "fib_builder_triton", "mojo"))
    assert idle_names(settings, plugins) == ["trition", "mojo"]
