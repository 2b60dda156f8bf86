"""``fib info``: machine and installation for a bug report."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections import Counter
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from flashinfer_bench import __version__, env, plugins
from flashinfer_bench.bench.confinement import pick_sandbox
from flashinfer_bench.cli.datasets import default_dataset, require_writable
from flashinfer_bench.cli.options import AsJson  # noqa: TC001 - typer reads annotations
from flashinfer_bench.cli.output import emit, emit_document, printable
from flashinfer_bench.errors import CapabilityError
from flashinfer_bench.tensors.devices import cpu_hardware, nvidia_gpus, torch_versions

if TYPE_CHECKING:
    from collections.abc import Callable

_LAYOUT: Any = {"width": 69, "max_lines": 9, "break_on_hyphens": False, "placeholder": " …"}
_ASK_S = 5.0
_SMI = "nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader"
_OURS = ("FIB_", "FLASHINFER_", "CUDA_VISIBLE_DEVICES")
_SECRET = re.compile(r"TOKEN|SECRET|PASS|KEY|CREDENTIAL", re.IGNORECASE)
_LOGIN = re.compile(r"(?<=://)[^/\s]+(?=@)")


def info(as_json: AsJson = False) -> None:
    """Describe this machine and installation for a bug report.

    Imports no torch and uses no GPU. The path of your home folder and anything that looks like a
    secret are left out.
    """
    with redirect_stdout(sys.stderr):  # plugins may print
        text = json.dumps({name: _tried(reader) for name, reader in _READERS.items()})
    with suppress(RuntimeError):  # no home folder
        text = text.replace(json.dumps(f"{Path.home()}/")[1:-1], "~/")
    if as_json:
        emit_document(**json.loads(text))
        return
    for label, value in json.loads(text).items():
        for line in wrap(printable(_told(value)), **_LAYOUT):
            emit(f"{label:<11}{line}")
            label = ""


def _told(value: Any) -> str:
    if isinstance(value, dict):
        # Of a plugin, what is not said is well.
        told = (f"{name}={one.removesuffix(' ok')}" for name, one in value.items())
        return ", ".join(told) or "none"
    if isinstance(value, list):
        return "; ".join(f"{count} x {one}" for one, count in Counter(value).items())
    return str(value)


def _tried(reader: Callable[[], Any]) -> Any:
    try:
        return reader()
    except Exception as error:  # noqa: BLE001 - the other lines are worth having
        return f"{type(error).__name__}: {error}"


def _ask(command: list[str], **more: Any) -> list[str]:
    quiet: Any = {"stderr": subprocess.DEVNULL, "timeout": _ASK_S, "text": True}
    return str(subprocess.check_output(command, **quiet, **more)).splitlines()


def _plugins() -> dict[str, str]:
    # Not strict: broken plugins are reported, not raised.
    settings = replace(plugins.Settings.from_env(), strict=False)
    plugins.reset_default_catalog(plugins.discover(settings), replace=False)
    found: dict[str, str] = {}
    for one in plugins.default_catalog().survey():
        name = one.distribution or one.name
        if one.state != "ok" or name not in found:  # a distribution may have two plugins
            reason = f" ({one.reason})" if one.state == "broken" else ""
            found[name] = f"{one.version} {one.state}{reason}".strip()
    return found


def _gpus() -> Any:
    try:
        return [", driver ".join(line.rsplit(", ", 1)) for line in _ask(_SMI.split())]
    except FileNotFoundError:
        return [str(gpu.name) for gpu in nvidia_gpus()] or "none (nvidia-smi not found)"


def _compilers() -> dict[str, str]:
    from fib_native_toolkit import tools

    found = dict.fromkeys(("c++", "nvcc", "ninja"), "none")
    for name, find in zip(found, (tools.find_cxx, tools.find_nvcc, tools.find_ninja), strict=True):
        with suppress(CapabilityError):
            found[name] = find().number
    return found


def _cache() -> str:
    require_writable(env.cache_path(), "")
    return f"{env.cache_path()}, writable"


def _dataset() -> str:
    path = default_dataset()
    count = sum(1 for _ in path.glob("definitions/**/*.json"))
    return f"{path}, definitions: {count}" if path.is_dir() else f"none ({path} does not exist)"


def _sandbox() -> str:
    if (method := pick_sandbox()) is None:
        return "off (no sandbox for this system is installed)"
    tolerant = {**os.environ, "FIB_STRICT_PLUGINS": "0"}
    code = f"import {__name__}; {__name__}.try_to_confine()"
    with TemporaryDirectory() as folder:
        missing, lacking = json.loads(
            _ask([sys.executable, "-c", code], cwd=folder, env=tolerant)[-1]
        )
    method.tidy()
    level = f"auto (does not prevent {', '.join(lacking)})" if lacking else "strict"
    return f"{level}; unavailable: {', '.join(missing)}" if missing else level


def try_to_confine() -> None:
    """Confine this process; print which measures are missing, and what that does not prevent."""
    method: Any = pick_sandbox()
    applied, missing = method.confine([], hidden=[], device="cpu", workdir=Path.cwd())
    needed = {**method.needed, **method.needed_on_cpu}.items()
    lacking = [what for what, names in needed if not {*applied} & {*names}]
    emit(json.dumps([[*missing], lacking]))


def _variables() -> dict[str, str]:
    return {
        name: "***" if _SECRET.search(name) else _LOGIN.sub("***", value)
        for name, value in sorted(os.environ.items())
        if name.startswith(_OURS)
    }


_READERS: dict[str, Callable[[], Any]] = {
    "version": lambda: f"flashinfer-bench {__version__}",
    "plugins": _plugins,
    "python": lambda: f"{platform.python_version()} ({platform.python_implementation()})",
    "platform": platform.platform,
    "libraries": lambda: {"torch": "none", **torch_versions(), **plugins.language_versions()},
    "gpus": _gpus,
    "cpu": cpu_hardware,
    "compilers": _compilers,
    "cache": _cache,
    "dataset": _dataset,
    "sandbox": _sandbox,
    "variables": _variables,
}
