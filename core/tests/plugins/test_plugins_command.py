"""``fib plugins`` in this process, on modules that are loaded as plugins."""

from __future__ import annotations

import json
import sys

import pytest
import typer

from flashinfer_bench.cli.exit_codes import ExitCode
from flashinfer_bench.cli.main import app
from flashinfer_bench.cli.plugins import check_up
from flashinfer_bench.plugins import Catalog, PluginStatus, TimerSpec

SOURCE = """
from flashinfer_bench.plugins import Availability, BuilderSpec, hookimpl

@hookimpl
def fib_register_builders():
    yield BuilderSpec(name="mine", handles=(("mine", None), ("mine", "torch")), priority=70,
                      factory="fib_test_command:Builder", summary="Builds mine")
    yield BuilderSpec(name="absent", handles=(("mine", None),), factory="m:B", compiles=True,
                      devices=("cuda",), probe="fib_test_command:no", priority=0)

class Builder: ...

def no():
    return Availability(False, "no compiler", "install it")
"""


@pytest.fixture
def fib(tmp_path, monkeypatch, capsys):
    """Run ``fib`` with just the plugin above; returns exit code, stdout and stderr."""
    (tmp_path / "fib_test_command.py").write_text(SOURCE)
    (tmp_path / "fib_test_broken.py").write_text("raise ImportError('\\x1b[31mred')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FIB_NO_PLUGINS", "1")
    monkeypatch.setenv("FIB_PLUGINS", "fib_test_command")

    def run(*arguments):
        code = typer.main.get_command(app).main(
            ["plugins", *arguments], prog_name="fib", standalone_mode=False
        )
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    yield run
    for name in ("fib_test_command", "fib_test_broken"):
        sys.modules.pop(name, None)


def test_a_record_in_the_listing(fib):
    code, out, err = fib("list", "--kind", "builder", "--json")
    assert (code, err) == (ExitCode.OK, "")
    mine, absent = json.loads(out)["records"]
    assert mine == {
        "kind": "builder",
        "name": "mine",
        "handles": [["mine", None], ["mine", "torch"]],
        "devices": [],
        "compiles": False,
        "preloads": [],
        "factory": "fib_test_command:Builder",
        "probe": None,
        "summary": "Builds mine",
        "priority": 70,
        "plugin": "fib_test_command",
        "distribution": "",
        "version": "",
        "provided_by": "fib_test_command",
        "state": "ok",
        "reason": "",
        "remedy": "",
        "detail": "Builds mine",
    }
    assert (absent["devices"], absent["compiles"]) == (["cuda"], True)
    assert (absent["state"], absent["reason"], absent["remedy"]) == (
        *("unavailable", "no compiler"),
        "install it",
    )


@pytest.mark.parametrize("spelling", ["stop_rule", "stop-rule", "STOP_RULE"])
def test_kinds_can_be_spelled_with_a_hyphen(fib, spelling):
    code, out, _ = fib("list", "--kind", spelling, "--json")
    assert code == ExitCode.OK
    assert {record["kind"] for record in json.loads(out)["records"]} == {"stop_rule"}


def test_show_a_plugin_in_full(fib):
    code, out, _ = fib("show", "mine")
    assert code == ExitCode.OK
    assert out.splitlines() == [
        "fib_test_command (fib_test_command) - ok",
        "  builder mine - ok",
        "    summary     Builds mine",
        "    handles     mine, mine (binding: torch)",
        "    factory     fib_test_command:Builder",
        "    priority    70",
        "  builder absent - unavailable: no compiler (install it)",
        "    handles     mine",
        "    devices     cuda",
        "    compiles    yes",
        "    factory     m:B",
        "    probe       fib_test_command:no",
        "    priority    0",
    ]


def test_the_doctor_on_a_broken_plugin(fib, monkeypatch):
    monkeypatch.setenv("FIB_PLUGINS", "fib_test_command,fib_test_broken")
    code, out, _ = fib("doctor", "fib_test_broken")
    assert code == ExitCode.FINDINGS
    assert "  problem: failed to load: ImportError: \\x1b[31mred" in out
    assert "\x1b" not in out  # what a plugin says does not colour the terminal
    assert fib("doctor", "fib_test_command")[0] == ExitCode.OK


def test_heavy_imports_are_noted():
    catalog = Catalog.of(TimerSpec(name="t", devices=("cpu",), factory="m:T"))
    status = PluginStatus(name="given", heavy_imports=("torch", "triton"))
    (note,) = check_up(catalog, status)["notes"]
    assert note.startswith("it imports torch, triton at load time, which is slow")
