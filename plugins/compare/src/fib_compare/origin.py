"""The provenance that a trace records: machine, plugins, toolchain and settings.

Errors here never end a run; what cannot be found out is left out.
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

#: Settings of a run that can affect a status or a latency. Number of calls, seed, timer and trust
#: have their own fields in a trace.
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
"""Settings of which only the keys that differ from the defaults are recorded."""


def provenance_of(
    session: Session, baseline: DeviceBaseline, solution: Solution, builder: str
) -> dict[str, Any]:
    """Return fields of a `Provenance`; unknown values and defaults are left out.

    Parameters
    ----------
    session : Session
        The run.
    baseline : DeviceBaseline
        The workload.
    solution : Solution
        The evaluated solution.
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
        # The version of core is recorded elsewhere.
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
    except FibError as error:  # reported where the plugin is used
        logger.debug("a plugin is not recorded: %s", error)
        return None


def toolchain_of(definition: Definition, solution: Solution) -> dict[str, str]:
    """Return the compilers of a solution, from its build in the cache.

    Returns
    -------
    dict of str to str
        Versions of compilers; empty if the solution is not compiled, or not in the cache.
    """
    from flashinfer_bench import env
    from flashinfer_bench.compile.builder import content_digest
    from flashinfer_bench.compile.cache import COMPLETE

    try:
        from fib_build_cache.info import LibraryInfo
    except ImportError:  # without fib-native-toolkit nothing is compiled
        return {}
    try:
        marks = [(path.stat().st_mtime, path) for path in env.cache_path().glob(f"*/*/{COMPLETE}")]
        for _, mark in sorted(marks, reverse=True):  # most recently used first
            prefix, _, digest = mark.parent.name.rpartition("_")
            info = LibraryInfo.read(mark.parent)
            if info is None:
                continue
            # The name of a build is a hash of all its inputs.
            key = json.dumps(info.key, sort_keys=True)
            if digest == content_digest(definition, solution, prefix, key):
                tools = {name: str(info.key[name]) for name in _TOOLS if name in info.key}
                # The compiler's version, without its licence.
                return {
                    name: text.partition("\n")[0][:_MOST_CHARACTERS] for name, text in tools.items()
                }
    except OSError as error:
        logger.debug("no toolchain to record: %s", error)
    return {}


def recorded_settings(
    config: BenchmarkConfig, definition: Definition, workload: Workload
) -> dict[str, Any]:
    """Return the settings that differ from the defaults of this release.

    Parameters
    ----------
    config : BenchmarkConfig
        The settings of a run.
    definition, workload
        The definition and the workload that are evaluated.

    Returns
    -------
    dict
        Plain values for ``provenance.settings``; empty if all are defaults.
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
    """Return 12 hexadecimal digits that identify this machine anonymously.

    They are a hash of the system's id, the machine's name and its CPU, with a random salt that is
    kept in ``FIB_CACHE_PATH``, so that the name cannot be guessed. If the salt cannot be stored,
    the name is not part of the hash. A container counts as a separate machine.
    """
    from flashinfer_bench.compile.machine import cpu_description

    salt = _salt()
    # On some systems the description of the CPU contains the name of the machine.
    cpu = cpu_description().removesuffix(f" of {platform.node()}")
    ident = ""
    for path in _MACHINE_IDS:
        with suppress(OSError, UnicodeDecodeError):
            ident = ident or path.read_text(encoding="ascii").strip()
    parts = [salt, ident, platform.node() if salt else "", cpu]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _salt() -> str:
    """Return the salt of this cache; create it if there is none."""
    from flashinfer_bench.compile.cache import cache_folder

    path = cache_folder("machine") / "host.salt"
    with suppress(OSError, UnicodeDecodeError):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            made = path.with_name(f"host.salt.{secrets.token_hex(4)}")
            made.write_text(secrets.token_hex(_SALT_BYTES), encoding="ascii")
            with suppress(FileExistsError):  # os.link keeps a salt of another process
                path.hardlink_to(made)
            made.unlink()
        text = path.read_text(encoding="ascii").strip()
        return text if len(text) == 2 * _SALT_BYTES else ""
    return ""


def gpu_facts(device: str) -> dict[str, Any]:
    """Return the version of a GPU's driver, and its current clocks in MHz.

    Uses the driver's management library (NVML), which creates no CUDA context.
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
            with suppress(nvml.NVMLError):  # not available on virtual GPUs and MIG instances
                facts[f"{name}_clock_mhz"] = int(nvml.nvmlDeviceGetClockInfo(handle, kind))
    except Exception as error:  # noqa: BLE001 - whatever a driver does, it must not end a run
        logger.debug("cannot read driver and clocks of %s: %s", device, error)
    return facts


def _uuid_of(device: str) -> str:
    """Return the GPU's UUID, because CUDA and NVML number GPUs differently."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(torch.device(device)).uuid}"
