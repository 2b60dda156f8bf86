"""Turn tracing on and off: `enable_tracing`, `disable_tracing`, and environment variables.

Light: importing this module imports neither torch nor pydantic.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench import env
from flashinfer_bench._lazy import import_provided
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.routing.patch_points import opaque, router

if TYPE_CHECKING:
    from flashinfer_bench.tracing.runtime import Config, Dataset, TracingRuntime

__all__ = ["disable_tracing", "enable_tracing"]

_logger = logging.getLogger(__name__)

# Whether the environment variables have been applied or no longer matter.
_asked = False


def enable_tracing(
    dataset_path: Union[Dataset, Mapping[str, Any], None] = None,
    tracing_config: Config = None,
    blob_dir: Union[str, Path, None] = None,
    *,
    rules: Optional[Mapping[str, Any]] = None,
    out_dir: Union[str, Path, None] = None,
) -> TracingRuntime:
    """Start recording calls of definitions into a dataset.

    Recorded are calls of decorated functions, of `apply`, and of library functions that adapters
    cover. If a runtime is active, it is stopped and writes what it has recorded.

    Parameters
    ----------
    dataset_path : str, Path or TraceSet, optional
        The dataset: its definitions are recorded, and workloads are added to it. Default:
        ``FIB_DATASET_PATH``.
    tracing_config : TracingConfig, TracingConfigRegistry or mapping, optional
        Settings for all definitions, or by definition name. Default: `get_default_configs`.
    rules : mapping of str to TracingRule, optional
        Settings of the older interface, instead of `tracing_config`; see `flashinfer_bench.tracer`.
    out_dir, blob_dir : str or Path, optional
        Older interface: folders of the dataset to write to, such as ``…/traces/workloads`` and
        ``…/blob/workloads``.

    Returns
    -------
    TracingRuntime
        A context manager that disables tracing at the end of the body.

    Raises
    ------
    DatasetNotFoundError
        If the dataset does not exist.
    ConfigError, UnknownNameError
        If the settings are invalid, or name a policy that does not exist.

    Examples
    --------
    >>> with enable_tracing("/path/to/dataset") as tracing:
    ...     engine.run()
    """
    global _asked
    from flashinfer_bench.tracing.runtime import TracingRuntime

    _asked = True
    if isinstance(dataset_path, Mapping):  # the first two parameters of the older interface
        rules, dataset_path = dataset_path, None
        folder: Any = tracing_config
        if isinstance(folder, (str, Path)):
            out_dir, tracing_config = folder, None
    if rules is None and out_dir is None and blob_dir is None:
        return TracingRuntime(dataset_path, tracing_config).start()
    if dataset_path is not None or tracing_config is not None:
        raise ConfigError(
            "enable_tracing: rules, out_dir and blob_dir belong to the older interface and "
            "cannot be combined with dataset_path or tracing_config",
            hint="give only dataset_path and tracing_config",
        )
    of_rules = import_provided("fib_ops_llm.tracing_rules", "enable_tracing(rules=)")
    runtime: TracingRuntime = of_rules.Tracer(rules, out_dir, blob_dir).start()
    return runtime


def disable_tracing() -> None:
    """Stop recording and write what was recorded; does nothing if tracing is not enabled."""
    global _asked
    from flashinfer_bench.tracing import runtime

    _asked = True  # once disabled, the environment does not enable it again
    active = runtime.active()
    if active is not None:
        active.stop()


@opaque
def activate() -> None:
    """Apply the environment variables, once: ``FIB_ENABLE_TRACING=1`` calls `enable_tracing`.

    With ``FIB_TRACING_SIGNALS=1`` recorded workloads are also written on signals, if this is called
    in the main thread; see `tracing.shutdown`. A failure is logged as a warning, and tracing stays
    off. Does nothing while an engine waits for the first relevant call; see `engines`.
    """
    global _asked
    if router.deferred is not None or _asked:
        return
    _asked = True
    if env.in_command_line():
        return
    with env.warned("FIB_ENABLE_TRACING: tracing stays off"):
        if env.tracing_enabled():
            from flashinfer_bench.tracing.runtime import TracingRuntime
            from flashinfer_bench.tracing.shutdown import install_signal_handlers

            TracingRuntime().start()
            if env.tracing_signals() and threading.current_thread() is threading.main_thread():
                install_signal_handlers()
