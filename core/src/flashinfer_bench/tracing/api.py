"""What users call: `enable_tracing`, `disable_tracing`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional, Union

from flashinfer_bench.errors import ConfigError
from flashinfer_bench.tracing import enabling

if TYPE_CHECKING:
    from pathlib import Path

    from flashinfer_bench.data import TraceSet
    from flashinfer_bench.tracing.config import TracingConfig, TracingConfigRegistry
    from flashinfer_bench.tracing.runtime import TracingRuntime

__all__ = ["disable_tracing", "enable_tracing"]


def enable_tracing(
    dataset_path: Union[str, Path, TraceSet, Mapping[str, Any], None] = None,
    tracing_config: Union[
        TracingConfig, TracingConfigRegistry, Mapping[str, TracingConfig], None
    ] = None,
    *,
    rules: Optional[Mapping[str, Any]] = None,
    out_dir: Union[str, Path, None] = None,
    blob_dir: Union[str, Path, None] = None,
) -> TracingRuntime:
    """Record the calls of definitions into a dataset from now on.

    Recorded are calls of decorated functions, of `apply`, and of the functions of libraries that
    adapters know. A runtime that is active already is stopped, and has written what it has.

    Parameters
    ----------
    dataset_path : str, Path or TraceSet, optional
        The dataset: its definitions are recorded, and workloads are added to it. Default: that of
        ``FIB_DATASET_PATH``.
    tracing_config : TracingConfig, TracingConfigRegistry or mapping, optional
        Settings for all definitions, or for each by name. Default: `get_default_configs`.
    rules : mapping of str to TracingRule, optional
        Settings of the older interface, in place of `tracing_config`; see
        `flashinfer_bench.tracer`.
    out_dir, blob_dir : str or Path, optional
        Of the older interface: folders in the dataset that is written to, such as
        ``…/traces/workloads`` and ``…/blob/workloads``.

    Returns
    -------
    TracingRuntime
        A context manager, which disables it at the end of the body.

    Raises
    ------
    DatasetNotFoundError
        If there is no such dataset.
    ConfigError, UnknownNameError
        If the settings are something else, or name a policy that does not exist.

    Examples
    --------
    >>> with enable_tracing("/path/to/dataset") as tracing:
    ...     engine.run()
    """
    from flashinfer_bench.tracing.runtime import TracingRuntime

    enabling.asked()
    if isinstance(dataset_path, Mapping):  # the first parameter of the older interface
        rules, dataset_path = dataset_path, None
    if rules is None and out_dir is None and blob_dir is None:
        return TracingRuntime(dataset_path, tracing_config).start()
    if dataset_path is not None or tracing_config is not None:
        raise ConfigError(
            "enable_tracing: rules, out_dir and blob_dir are of the older interface and go with "
            "neither dataset_path nor tracing_config",
            hint="give dataset_path and tracing_config alone",
        )
    return _enable_by_rules(rules, out_dir, blob_dir)


def _enable_by_rules(
    rules: Optional[Mapping[str, Any]],
    out_dir: Union[str, Path, None],
    blob_dir: Union[str, Path, None],
) -> TracingRuntime:
    from flashinfer_bench.tracing.rules import Tracer

    return Tracer(rules, out_dir, blob_dir).start()


def disable_tracing() -> None:
    """Record no more, and write what was recorded; nothing happens if tracing is not enabled."""
    from flashinfer_bench.tracing import runtime

    enabling.asked()  # what has been turned off is not turned on by the environment afterwards
    active = runtime.active()
    if active is not None:
        active.stop()
