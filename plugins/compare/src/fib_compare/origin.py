"""What a trace says about where it came from: machine, plugins, toolchain and settings.

All of it is for the record: nothing here ends a run, and what is not known is left out.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import secrets
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.bench.config import EVAL_FIELDS, BenchmarkConfig
from flashinfer_bench.errors import FibError

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.bench.measurement import DeviceBaseline
    from flashinfer_bench.bench.session import Session
    from flashinfer_bench.data import Definition, Solution, Workload
    from flashinfer_bench.plugins import Registered

logger = logging.getLogger(__name__)

_CORE = "flashinfer-bench-core"
_TOOLS = ("compiler", "c_compiler", "nvcc", "cuda_architectures")
_MOST_CHARACTERS = 80
_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_SALT_BYTES = 16

#: Settings of a run that can decide a verdict or a latency; number of calls, seed, timer and trust
#: have places of their own in a trace.
SETTINGS_OF_RUNS = (
    "timeout_seconds",
    "profile_baseline",
    "use_isolated_runner",
    "executor",
    "evaluator",
    "sandbox",
)
_COUNTS = ("warmup_runs", "iterations", "num_trials")
SETTINGS_OF_DEFINITIONS = (
    *(name for name in EVAL_FIELDS if name not in _COUNTS),
    "atol_by_dtype",
    "rtol_by_dtype",
    "stop_params",
)
SETTINGS_BY_KEY = ("tolerances", "extra")
"""Only the keys that differ are recorded of these."""


def provenance_of(
    session: Session, baseline: DeviceBaseline, solution: Solution, builder: str
) -> dict[str, Any]:
    """Return fields of a `Provenance`; what is not known, or as by default, is left out.

    Parameters
    ----------
    session : Session
        The run.
    baseline : DeviceBaseline
        The workload.
    solution : Solution
        What was evaluated.
    builder : str
        Name of its builder; empty if it is not known.
    """
    catalog, config, device = session.catalog, session.config, session.device
    definition, workload, spec = baseline.definition, baseline.workload, solution.spec
    if builder:
        entry = _chosen(catalog.find, "builder", builder)
    else:
        entry = _chosen(catalog.select_builder, spec.language, spec.binding, device=device)
    if config.evaluator:
        evaluator = _chosen(catalog.find, "evaluator", config.evaluator)
    else:
        evaluator = _chosen(catalog.select_evaluator, definition)
    plugins = {
        "builder": entry,
        "evaluator": evaluator,
        "timer": _chosen(catalog.timers.for_device, device, config.timer),
        "executor": _chosen(catalog.executors.for_device, device, config.executor),
    }
    found = {
        "host": host_fingerprint(),
        **gpu_facts(device),
        "settings": recorded_settings(config, definition, workload),
        # The release of core is recorded anyway.
        "plugins": {
            role: one.origin
            for role, one in plugins.items()
            if one is not None and one.distribution != _CORE
        },
    }
    if entry is not None and entry.spec.compiles:
        found["toolchain"] = toolchain_of(definition, solution)
    return {name: value for name, value in found.items() if value}


def _chosen(
    choose: Callable[..., Registered[Any]], *asked: Any, **more: Any
) -> Optional[Registered[Any]]:
    try:
        return choose(*asked, **more)
    except FibError as error:  # whoever needs it says so
        logger.debug("a plugin is not recorded: %s", error)
        return None


def toolchain_of(definition: Definition, solution: Solution) -> dict[str, str]:
    """Return what a solution was compiled with, as its build in the cache says.

    Returns
    -------
    dict of str to str
        The versions of compilers; empty if it is not compiled, or was only in memory.
    """
    from flashinfer_bench import env
    from flashinfer_bench.compile.builder import content_digest
    from flashinfer_bench.compile.cache import COMPLETE

    try:
        from fib_build_cache.info import LibraryInfo
    except ImportError:  # fib-native-toolkit makes what is compiled, and is not installed
        return {}
    try:
        marks = [(path.stat().st_mtime, path) for path in env.cache_path().glob(f"*/*/{COMPLETE}")]
        for _, mark in sorted(marks, reverse=True):  # the one that was used last first
            prefix, _, digest = mark.parent.name.rpartition("_")
            info = LibraryInfo.read(mark.parent)
            if info is None:
                continue
            # The name of a build follows from all that it is of.
            key = json.dumps(info.key, sort_keys=True)
            if digest == content_digest(definition, solution, prefix, key):
                tools = {name: str(info.key[name]) for name in _TOOLS if name in info.key}
                # What a compiler says of itself, without its licence.
                return {
                    name: text.partition("\n")[0][:_MOST_CHARACTERS] for name, text in tools.items()
                }
    except OSError as error:
        logger.debug("no toolchain to record: %s", error)
    return {}


def recorded_settings(
    config: BenchmarkConfig, definition: Definition, workload: Workload
) -> dict[str, Any]:
    """Return the settings that differ from what this release takes if nobody sets anything.

    Parameters
    ----------
    config : BenchmarkConfig
        The settings of a run.
    definition, workload
        What is evaluated.

    Returns
    -------
    dict
        Plain values, for ``provenance.settings``; empty if all are as by default.
    """
    defaults = _defaults()
    changed = {
        name: getattr(config, name)
        for name in SETTINGS_OF_RUNS
        if getattr(config, name) != getattr(defaults, name)
    }
    before, after = (
        one.resolve_eval_config(definition, workload).model_dump(mode="json")
        for one in (defaults, config)
    )
    for name in SETTINGS_OF_DEFINITIONS:
        if after[name] != before[name]:
            changed[name] = after[name]
    for name in SETTINGS_BY_KEY:
        own = {key: value for key, value in after[name].items() if value != before[name].get(key)}
        if own:
            changed[name] = own
    return changed


@cache
def _defaults() -> BenchmarkConfig:
    return BenchmarkConfig.default()


@cache
def host_fingerprint() -> str:
    """Return 12 hexadecimal digits that tell this machine from others and name nobody.

    They are a hash over the system's own id, the machine's name and its CPU, together with a random
    number in ``FIB_CACHE_PATH`` that never leaves it: so nobody can find the name by trying names.
    Where that cannot be kept, the name does not enter. A container has a name of its own, and
    counts as another machine.
    """
    from flashinfer_bench.compile.machine import cpu_description

    salt = _salt()
    # On some systems the name of the machine stands in for the description of its CPU.
    cpu = cpu_description().removesuffix(f" of {platform.node()}")
    ident = ""
    for path in _MACHINE_IDS:
        with suppress(OSError, UnicodeDecodeError):
            ident = ident or path.read_text(encoding="ascii").strip()
    parts = [salt, ident, platform.node() if salt else "", cpu]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _salt() -> str:
    """Return the random number of this cache; make it if there is none."""
    from flashinfer_bench.compile.cache import cache_folder

    path = cache_folder("machine") / "host.salt"
    with suppress(OSError, UnicodeDecodeError):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            made = path.with_name(f"host.salt.{secrets.token_hex(4)}")
            made.write_text(secrets.token_hex(_SALT_BYTES), encoding="ascii")
            with suppress(FileExistsError):  # a link never replaces what another process has made
                path.hardlink_to(made)
            made.unlink()
        text = path.read_text(encoding="ascii").strip()
        return text if len(text) == 2 * _SALT_BYTES else ""
    return ""


def gpu_facts(device: str) -> dict[str, Any]:
    """Return the version of a GPU's driver, and its clocks as they are now in MHz.

    The driver's management library (NVML) is asked, which makes no CUDA context.
    """
    if device.partition(":")[0] != "cuda":
        return {}
    facts: dict[str, Any] = {}
    try:
        nvml: Any = import_module("pynvml")
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(_uuid_of(device))
        driver = nvml.nvmlSystemGetDriverVersion()
        facts["driver"] = driver.decode("ascii") if isinstance(driver, bytes) else str(driver)
        for name, kind in (("sm", nvml.NVML_CLOCK_SM), ("memory", nvml.NVML_CLOCK_MEM)):
            with suppress(nvml.NVMLError):  # a virtual GPU, or a part of one, may not tell
                facts[f"{name}_clock_mhz"] = int(nvml.nvmlDeviceGetClockInfo(handle, kind))
    except Exception as error:  # noqa: BLE001 - whatever a driver does, it must not end a run
        logger.debug("%s cannot be asked about driver and clocks: %s", device, error)
    return facts


def _uuid_of(device: str) -> str:
    """Return the GPU's UUID: CUDA and NVML number GPUs differently."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(torch.device(device)).uuid}"
