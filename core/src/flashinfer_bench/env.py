"""All environment variables of core; no other module reads them.

Each call reads the current value, so that a test or a user may set it at any time.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional

from flashinfer_bench._lazy import old_names

if TYPE_CHECKING:
    from collections.abc import Iterator

__getattr__ = old_names(__name__)

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})
_ARCHITECTURE = re.compile(r"\d{1,2}\.\d[af]?(\+PTX)?")


class Variable(NamedTuple):
    """One environment variable, as documented to users."""

    name: str
    default: str
    meaning: str


VARIABLES = (
    Variable("FIB_DATASET_PATH", "~/.cache/flashinfer_bench/dataset", "default dataset folder"),
    Variable("FIB_CACHE_PATH", "~/.cache/flashinfer_bench/cache", "builds, locks and other caches"),
    Variable("FIB_FSYNC", "always", "never: the system decides when records reach the disk"),
    Variable("FIB_DATASET_LOCK", "flock", "soft: lock files instead, for NFS without locking"),
    Variable("FIB_ENABLE_APPLY", "0", "1 routes calls to the best recorded solutions"),
    Variable("FIB_APPLY_PATH", "", "folder of solutions, one per definition, to apply instead"),
    Variable("FIB_APPLY_HELPER", "1", "0 turns off the helper, compiled to make calls cheaper"),
    Variable("FIB_ENABLE_TRACING", "0", "1 records the workloads of the running program"),
    Variable("FIB_ADAPTERS", "", "comma-separated adapters to use; -name excludes one"),
    Variable("FIB_TRACING_SIGNALS", "0", "1 also writes recorded workloads on SIGTERM and SIGINT"),
    Variable("FIB_NO_PLUGINS", "0", "1 loads no installed plugin"),
    Variable("FIB_DISABLE_PLUGINS", "", "comma-separated plugins that are not loaded"),
    Variable("FIB_PLUGINS", "", "comma-separated modules loaded as plugins without installation"),
    Variable("FIB_STRICT_PLUGINS", "0", "1 makes a broken plugin an error, not a warning"),
    Variable("FIB_PROBE_TIMEOUT_S", "1.0", "time limit of a plugin's probe, in seconds"),
    Variable("FIB_CUDA_ARCH_LIST", "the GPUs here", "architectures to compile for: 9.0a 10.0a"),
    Variable("FIB_LOCK_PATH", "/tmp/fib-device-locks", "device locks, shared by all users"),
    Variable("FIB_CPU_THREADS", "cores - 1", "threads of a solution that runs on the CPU"),
    Variable("FIB_SANDBOX_MEMORY_MB", "half of the RAM", "limit for each process of a solution"),
    Variable("FIB_SANDBOX_FILE_MB", "4096", "limit for each file that a solution writes"),
    Variable("FIB_SANDBOX_PROCESSES", "64 per core", "limit for processes and threads"),
    Variable("FIB_SANDBOX_WRITABLE", "", "folders that solutions may write to, separated by ':'"),
    Variable("FIB_SERVE_TOKEN", "", "token that fib submit sends to a server"),
    Variable("FIB_LOG_LEVEL", "", "default of --log-level"),
    Variable("FIB_TRACEBACK", "0", "1 prints the traceback of every error of the command line"),
)

PLUGIN_VARIABLES = ("FIB_NO_PLUGINS", "FIB_DISABLE_PLUGINS", "FIB_PLUGINS")
"""The variables that decide which plugins are loaded."""


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
    # Absolute, so that loaded files are found again after a change of the current folder.
    return Path(os.environ.get(name) or default).expanduser().absolute()


def _optional_path(name: str) -> Optional[Path]:
    return _path(name, "") if os.environ.get(name) else None


def dataset_path() -> Path:
    """Return ``FIB_DATASET_PATH``, the dataset to use when none is named."""
    return _path("FIB_DATASET_PATH", "~/.cache/flashinfer_bench/dataset")


def cache_path() -> Path:
    """Return ``FIB_CACHE_PATH``, the folder of builds, locks and other caches."""
    return _path("FIB_CACHE_PATH", "~/.cache/flashinfer_bench/cache")


def lock_path() -> Optional[Path]:
    """Return ``FIB_LOCK_PATH``, the folder of the device locks; None if it is not set."""
    return _optional_path("FIB_LOCK_PATH")


def _one_of(name: str, *allowed: str) -> str:
    """Return the value of a variable; the default is the first allowed value."""
    value = os.environ.get(name, "").strip().lower() or allowed[0]
    if value not in allowed:
        raise ValueError(f"{name}={value!r}; allowed are {', '.join(allowed)}")
    return value


def fsync_wanted() -> bool:
    """Return whether ``FIB_FSYNC`` requires each record to be on disk before the writer goes on."""
    return _one_of("FIB_FSYNC", "always", "never") == "always"


def soft_dataset_locks() -> bool:
    """Return whether ``FIB_DATASET_LOCK`` asks for lock files in place of ``flock``."""
    return _one_of("FIB_DATASET_LOCK", "flock", "soft") == "soft"


def apply_enabled() -> bool:
    """Return whether ``FIB_ENABLE_APPLY`` is set to true."""
    return _flag("FIB_ENABLE_APPLY")


def apply_mentioned() -> bool:
    """Return whether ``FIB_ENABLE_APPLY`` is set to anything but false."""
    return os.environ.get("FIB_ENABLE_APPLY", "").strip().lower() not in _FALSE


def flashinfer_apply() -> Optional[str]:
    """Return FlashInfer's own ``FLASHINFER_TRACE_APPLY``; None if it is unset or false."""
    value = os.environ.get("FLASHINFER_TRACE_APPLY", "")
    return None if value in ("", "0", "false", "False") else value


def flashinfer_apply_path() -> Optional[Path]:
    """Return FlashInfer's own ``FLASHINFER_TRACE_APPLY_PATH``; None if it is not set."""
    return _optional_path("FLASHINFER_TRACE_APPLY_PATH")


def apply_helper_wanted() -> bool:
    """Return whether ``FIB_APPLY_HELPER`` allows the helper to be compiled in the background."""
    allowed = os.environ.get("FIB_APPLY_HELPER", "1").strip().lower() not in _FALSE
    return allowed and not in_command_line()


def in_command_line() -> bool:
    """Return whether this process is ``fib``, in which apply and tracing are never enabled."""
    return "flashinfer_bench.cli.main" in sys.modules


def apply_path() -> Optional[Path]:
    """Return ``FIB_APPLY_PATH``, a folder of chosen solutions; None if it is not set."""
    return _optional_path("FIB_APPLY_PATH")


def tracing_enabled() -> bool:
    """Return whether ``FIB_ENABLE_TRACING`` is set to true."""
    return _flag("FIB_ENABLE_TRACING")


def tracing_mentioned() -> bool:
    """Return whether ``FIB_ENABLE_TRACING`` is set to anything but false."""
    return os.environ.get("FIB_ENABLE_TRACING", "").strip().lower() not in _FALSE


def tracing_signals() -> bool:
    """Return whether ``FIB_TRACING_SIGNALS`` asks to write recorded workloads on signals."""
    return _flag("FIB_TRACING_SIGNALS")


def no_plugins() -> bool:
    """Return whether ``FIB_NO_PLUGINS`` turns every installed plugin off."""
    return _flag("FIB_NO_PLUGINS")


def disabled_plugins() -> tuple[str, ...]:
    """Return the names in ``FIB_DISABLE_PLUGINS``."""
    return _names("FIB_DISABLE_PLUGINS")


def plugin_modules() -> tuple[str, ...]:
    """Return the modules in ``FIB_PLUGINS``, which are loaded as plugins without installation."""
    return _names("FIB_PLUGINS")


def adapters() -> tuple[str, ...]:
    """Return the words in ``FIB_ADAPTERS``: adapters to use, and ``-name`` to exclude."""
    return _names("FIB_ADAPTERS")


def strict_plugins() -> bool:
    """Return whether ``FIB_STRICT_PLUGINS`` makes a broken plugin an error."""
    return _flag("FIB_STRICT_PLUGINS")


def probe_timeout_s() -> float:
    """Return ``FIB_PROBE_TIMEOUT_S``, the time limit of a probe."""
    text = os.environ.get("FIB_PROBE_TIMEOUT_S") or "1.0"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise ValueError(f"FIB_PROBE_TIMEOUT_S={text!r} is not a positive number of seconds")
    return seconds


def _positive(name: str, most: int = 2**40) -> Optional[int]:
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise ValueError(f"{name}={text!r} is not a whole number from 1 to {most}")
    return int(text)


def _megabytes(name: str) -> Optional[int]:
    megabytes = _positive(name)
    return None if megabytes is None else megabytes << 20


def cpu_threads() -> Optional[int]:
    """Return ``FIB_CPU_THREADS``, or None when it is not set."""
    # More threads than any machine has cores only exhaust it.
    return _positive("FIB_CPU_THREADS", 4096)


def sandbox_memory_bytes() -> Optional[int]:
    """Return ``FIB_SANDBOX_MEMORY_MB`` in bytes, or None when it is not set."""
    return _megabytes("FIB_SANDBOX_MEMORY_MB")


def sandbox_file_bytes() -> Optional[int]:
    """Return ``FIB_SANDBOX_FILE_MB`` in bytes, or None when it is not set."""
    return _megabytes("FIB_SANDBOX_FILE_MB")


def sandbox_processes() -> Optional[int]:
    """Return ``FIB_SANDBOX_PROCESSES``, or None when it is not set."""
    return _positive("FIB_SANDBOX_PROCESSES")


def sandbox_writable() -> tuple[Path, ...]:
    """Return the folders in ``FIB_SANDBOX_WRITABLE``."""
    names = os.environ.get("FIB_SANDBOX_WRITABLE", "").split(os.pathsep)
    return tuple(Path(name).expanduser().absolute() for name in names if name.strip())


def log_level() -> Optional[str]:
    """Return ``FIB_LOG_LEVEL``, or None when it is not set."""
    return os.environ.get("FIB_LOG_LEVEL") or None


def show_traceback() -> bool:
    """Return whether ``FIB_TRACEBACK`` asks for the traceback of every command-line error."""
    return _flag("FIB_TRACEBACK")


def cuda_visible_devices() -> Optional[tuple[str, ...]]:
    """Return the entries of CUDA's ``CUDA_VISIBLE_DEVICES``, or None when it is not set."""
    return _names("CUDA_VISIBLE_DEVICES") if "CUDA_VISIBLE_DEVICES" in os.environ else None


def cuda_device_order() -> str:
    """Return CUDA's ``CUDA_DEVICE_ORDER``, which decides how devices are numbered."""
    return os.environ.get("CUDA_DEVICE_ORDER", "").strip() or "FASTEST_FIRST"


def cuda_arch_list() -> tuple[str, ...]:
    """Return the architectures in ``FIB_CUDA_ARCH_LIST``, separated by space, comma or ``;``."""
    text = os.environ.get("FIB_CUDA_ARCH_LIST", "")
    names = tuple(name for name in re.split(r"[\s,;]+", text) if name)
    wrong = [name for name in names if not _ARCHITECTURE.fullmatch(name)]
    if wrong:
        raise ValueError(
            f"FIB_CUDA_ARCH_LIST={text!r}: {wrong[0]!r} is not a compute capability "
            "(8.0, 9.0a, 10.0f, 12.0+PTX)"
        )
    return names


def set_variables() -> dict[str, str]:
    """Return the raw values of those of `VARIABLES` that are set, by name, without secrets."""
    names = (variable.name for variable in VARIABLES if variable.name in os.environ)
    return {name: "***" if name.endswith("_TOKEN") else os.environ[name] for name in names}


def serve_token() -> Optional[str]:
    """Return ``FIB_SERVE_TOKEN``, the token for a server; None if it is not set."""
    return os.environ.get("FIB_SERVE_TOKEN") or None


@contextmanager
def warned(consequence: str) -> Iterator[None]:
    """Turn a failure in the block into a warning, so that the program goes on."""
    try:
        yield
    except (Exception, SystemExit) as error:
        logging.getLogger(__name__).debug("%s", consequence, exc_info=True)
        message = f"{consequence}: {type(error).__name__}: {error}"
        try:
            warnings.warn(message, UserWarning, stacklevel=4)
        except UserWarning:  # warnings are errors in this program; it must go on all the same
            logging.getLogger(__name__).warning("%s", message)
