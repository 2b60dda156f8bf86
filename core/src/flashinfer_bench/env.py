"""Every environment variable that the project reads, and the only place that reads them.

Values are read anew at each call, so that a test or a user may set them at any time.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, Optional

_TRUE = frozenset({"1", "true", "yes", "on"})
_MOST_THREADS = 4096
_FALSE = frozenset({"", "0", "false", "no", "off"})


class Variable(NamedTuple):
    """One environment variable, as documented to users."""

    name: str
    default: str
    meaning: str


VARIABLES = (
    Variable("FIB_DATASET_PATH", "~/.cache/flashinfer_bench/dataset", "default dataset folder"),
    Variable("FIB_CACHE_PATH", "~/.cache/flashinfer_bench/cache", "builds, locks and other caches"),
    Variable("FIB_ENABLE_APPLY", "0", "1 routes calls to the best recorded solutions"),
    Variable("FIB_ENABLE_TRACING", "0", "1 records the workloads of the running program"),
    Variable("FIB_NO_PLUGINS", "0", "1 loads no installed plugin at all"),
    Variable("FIB_DISABLE_PLUGINS", "", "comma-separated plugins that are not loaded"),
    Variable("FIB_PLUGINS", "", "comma-separated modules loaded as plugins without installation"),
    Variable("FIB_STRICT_PLUGINS", "0", "1 raises where a broken plugin is otherwise set aside"),
    Variable("FIB_PROBE_TIMEOUT_S", "1.0", "seconds that a plugin's probe may take"),
    Variable("FIB_CPU_THREADS", "cores - 1", "threads of a solution that runs on the CPU"),
    Variable("FIB_LOG_LEVEL", "", "default of --log-level"),
    Variable("FIB_TRACEBACK", "0", "1 prints the traceback of every error of the command line"),
)


def _flag(name: str) -> bool:
    value = os.environ.get(name, "").strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise ValueError(
        f"{name}={value!r} is neither true (1, true, yes, on) nor false (0, false, no, off)"
    )


def _names(name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in os.environ.get(name, "").split(",") if part.strip())


def _path(name: str, default: str) -> Path:
    return Path(os.environ.get(name) or default).expanduser()


def dataset_path() -> Path:
    """Return ``FIB_DATASET_PATH``, the dataset that is used when none is named."""
    return _path("FIB_DATASET_PATH", "~/.cache/flashinfer_bench/dataset")


def cache_path() -> Path:
    """Return ``FIB_CACHE_PATH``, the folder of builds, locks and other caches."""
    return _path("FIB_CACHE_PATH", "~/.cache/flashinfer_bench/cache")


def apply_enabled() -> bool:
    """Return whether ``FIB_ENABLE_APPLY`` is set to true."""
    return _flag("FIB_ENABLE_APPLY")


def tracing_enabled() -> bool:
    """Return whether ``FIB_ENABLE_TRACING`` is set to true."""
    return _flag("FIB_ENABLE_TRACING")


def no_plugins() -> bool:
    """Return whether ``FIB_NO_PLUGINS`` turns every installed plugin off."""
    return _flag("FIB_NO_PLUGINS")


def disabled_plugins() -> tuple[str, ...]:
    """Return the names in ``FIB_DISABLE_PLUGINS``."""
    return _names("FIB_DISABLE_PLUGINS")


def plugin_modules() -> tuple[str, ...]:
    """Return the modules in ``FIB_PLUGINS``, loaded as plugins without being installed."""
    return _names("FIB_PLUGINS")


def strict_plugins() -> bool:
    """Return whether ``FIB_STRICT_PLUGINS`` makes a broken plugin an error."""
    return _flag("FIB_STRICT_PLUGINS")


def probe_timeout_s() -> float:
    """Return the seconds that a probe may take (``FIB_PROBE_TIMEOUT_S``)."""
    text = os.environ.get("FIB_PROBE_TIMEOUT_S") or "1.0"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise ValueError(f"FIB_PROBE_TIMEOUT_S={text!r} is not a positive number of seconds")
    return seconds


def cpu_threads() -> Optional[int]:
    """Return ``FIB_CPU_THREADS``, or None when it is not set."""
    text = os.environ.get("FIB_CPU_THREADS", "").strip()
    if not text:
        return None
    # Beyond any machine's cores, threads only exhaust it.
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_THREADS:
        raise ValueError(
            f"FIB_CPU_THREADS={text!r} is not a whole number from 1 to {_MOST_THREADS}"
        )
    return int(text)


def log_level() -> Optional[str]:
    """Return ``FIB_LOG_LEVEL``, or None when it is not set."""
    return os.environ.get("FIB_LOG_LEVEL") or None


def show_traceback() -> bool:
    """Return whether ``FIB_TRACEBACK`` asks for the traceback of every command-line error."""
    return _flag("FIB_TRACEBACK")


def visible_cuda_devices() -> tuple[str, ...]:
    """Return the entries of ``CUDA_VISIBLE_DEVICES`` (CUDA's own variable); empty if not set."""
    return _names("CUDA_VISIBLE_DEVICES")


def set_variables() -> dict[str, str]:
    """Return name and raw value of each of `VARIABLES` that is set, for reports."""
    names = (variable.name for variable in VARIABLES)
    return {name: os.environ[name] for name in names if name in os.environ}
