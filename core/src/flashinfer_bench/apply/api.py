"""The user interface of apply: `apply`, `enable_apply`, `disable_apply`.

A decorated function keeps its parameters. They are matched with the inputs and outputs of the
definition by name, or else by position; a call is substituted only if all parameters unknown to the
definition have their default values. torch.compile traces through a decorated function while
nothing is enabled for it, and breaks the graph at the substituted call otherwise.

>>> @apply("gemm_n4096_k4096")
... def gemm(A, B):
...     return A @ B.T

>>> @apply(lambda A, B: f"gemm_n{B.shape[0]}_k{B.shape[1]}")
... def any_gemm(A, B, bias=None):
...     return torch.nn.functional.linear(A, B, bias)

>>> out = apply("gemm_n4096_k4096", args=(A, B), fallback=lambda A, B: A @ B.T)
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union, overload

from flashinfer_bench import env
from flashinfer_bench._lazy import with_old_parameters
from flashinfer_bench.apply.runtime import ApplyRuntime, get_runtime, make_call, set_runtime
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.routing.patch_points import no_fallback, opaque, router

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from flashinfer_bench.apply.runtime import Named, Positional
    from flashinfer_bench.apply.table import Config
    from flashinfer_bench.apply.wrappers import Resolver
    from flashinfer_bench.data import Solution, TraceSet
    from flashinfer_bench.routing.patch_points import Fallback

    _Function = TypeVar("_Function", bound=Callable[..., Any])

__all__ = ["apply", "disable_apply", "enable_apply", "get_runtime", "set_runtime"]

logger = logging.getLogger(__name__)


@overload
def apply(name_or_resolver: Union[str, Resolver]) -> Callable[[_Function], _Function]: ...


@overload
def apply(
    name_or_resolver: Union[str, Resolver],
    args: Positional = None,
    kwargs: Named = None,
    fallback: Fallback = None,
) -> Any: ...


@overload
def apply(**old: Any) -> Any: ...


def apply(
    name_or_resolver: Any = None,
    args: Positional = None,
    kwargs: Named = None,
    fallback: Fallback = None,
    **old: Any,
) -> Any:
    """Answer calls with the best solution enabled for them.

    With only a name or resolver, it is a decorator. With arguments as well, it makes one call.
    Calls without an enabled solution go to the decorated function, or to `fallback`.

    Parameters
    ----------
    name_or_resolver : str or callable
        Name of the definition; or a function that takes the arguments of a call and returns the
        name. If that function returns None or fails, the original answers the call.
    args : sequence, optional
        The inputs in declaration order: the outputs are returned. Or inputs and outputs: the
        results are written to the outputs, and None is returned.
    kwargs : mapping, optional
        Arguments by their names in the definition.
    fallback : callable, optional
        Called with the same arguments if there is no solution for the call.
    **old
        Arguments under former parameter names.

    Returns
    -------
    Any
        A decorator; or the result of the call: a single output unwrapped, several as a tuple.

    Raises
    ------
    RuntimeError
        If there is neither a solution nor a fallback.
    ValueError
        If the number of arguments matches neither the inputs nor the inputs and outputs.
    """
    if old:
        given = {"args": args, "kwargs": kwargs, "fallback": fallback}
        return with_old_parameters(apply, old, name_or_resolver=name_or_resolver, **given)
    calls = router.calls
    if type(args) is tuple and (kwargs is None or (type(kwargs) is dict and not kwargs)):
        if not calls and router.quiet and fallback is not None:  # nothing is enabled
            return fallback(*args)
        try:
            call = calls.get(name_or_resolver)
        except TypeError:  # unhashable
            call = None
        if call is not None:
            return call(args, None, fallback)
        if router.quiet and fallback is not None and type(name_or_resolver) is str:
            return fallback(*args)
    elif args is None and type(kwargs) is dict and type(name_or_resolver) is str:
        call = calls.get(name_or_resolver)
        if call is not None:
            return call((), kwargs, fallback)
        if fallback is not None and router.quiet:
            return fallback(**kwargs)
    elif args is None and kwargs is None and fallback is None:
        return _decorator(name_or_resolver)
    activate()
    return make_call(router.call_of, no_fallback, name_or_resolver, args, kwargs, fallback)


def _decorator(target: Union[str, Resolver]) -> Callable[[_Function], _Function]:
    if not isinstance(target, str) and not callable(target):
        raise ConfigError(f"{target!r} is neither the name of a definition nor a resolver")
    activate()
    from flashinfer_bench.apply.wrappers import decorate

    return partial(decorate, target)  # type: ignore[return-value]


def enable_apply(
    dataset_path: Union[
        str, Path, TraceSet, Mapping[str, Union[Callable[..., Any], Solution, str, Path]], None
    ] = None,
    apply_config: Config = None,
    *,
    device: Union[str, torch.device, None] = None,
    dataset: Union[str, Path, TraceSet, None] = None,
) -> Any:
    """Enable the best recorded solutions for calls from now on.

    Calls can be nested: only the most recently enabled settings are used, until they are disabled.

    Parameters
    ----------
    dataset_path : str, Path, TraceSet or mapping, optional
        A dataset, or its folder. Or a mapping from each definition to one solution: a callable, a
        `Solution` (or FlashInfer's) or a path to one; see `flashinfer_bench.apply.mapping`.
        Default: the first of these that is set: the folder of ``FIB_APPLY_PATH``, the dataset of
        ``FIB_DATASET_PATH``, the folder of ``FLASHINFER_TRACE_APPLY_PATH``; else the usual dataset,
        if it exists.
    apply_config : ApplyConfig or ApplyConfigRegistry, optional
        Settings for all definitions, or by definition.
    device : str or torch.device, optional
        For a dataset: the device whose records are used, and on which the tensors of calls are:
        ``cpu``, ``cuda`` or ``cuda:N``. Default: the current GPU if there is one, else the CPU.
    dataset : TraceSet, str or Path, optional
        For a mapping: the source of its definitions. Missing definitions, and all by default, are
        taken from the dataset of ``FIB_DATASET_PATH``.

    Returns
    -------
    ApplyRuntime or WrappedCount
        A context manager that disables apply at the end of the body. For a dataset, the runtime,
        which is callable like `apply`; for a mapping, the number of functions whose calls it may
        answer. If nothing is configured, that number is 0, and nothing is enabled.

    Raises
    ------
    DatasetNotFoundError, DataError
        If the dataset does not exist or is not valid.
    ConfigError
        If the settings or a mapping's values are invalid; if a device is given for a mapping, or a
        dataset without a mapping.
    CapabilityError
        If the device does not exist.

    Examples
    --------
    >>> with enable_apply("/path/to/dataset", ApplyConfig(on_miss_policy="use_def_best")):
    ...     out = gemm(A, B)
    """
    folder, dataset_named = None, bool(env.set_variables().get("FIB_DATASET_PATH"))
    if dataset_path is None:
        folder = env.apply_path() or (None if dataset_named else env.flashinfer_apply_path())
    if isinstance(dataset_path, Mapping) or folder is not None:
        if device is not None:
            raise ConfigError(
                f"device={device!r} is for datasets: a mapping uses the tensors of each call",
                hint="leave it out",
            )
        from flashinfer_bench.apply.mapping import enable_mapping

        mapping: Any = dataset_path if folder is None else folder
        return enable_mapping(mapping, apply_config, dataset=dataset)
    if dataset is not None:
        raise ConfigError(
            "dataset= supplies the definitions of a mapping, and no mapping was given",
            hint="give a mapping from definitions to solutions, or pass the dataset itself "
            "as the first argument",
        )
    if dataset_path is None and not (dataset_named or env.dataset_path().is_dir()):
        from flashinfer_bench.apply.mapping import MappingRuntime, WrappedCount

        logger.info("apply: nothing is configured, so nothing is enabled")
        return WrappedCount(MappingRuntime({}, {}))
    return ApplyRuntime(dataset_path, apply_config, device=device).start()


def disable_apply() -> None:
    """Undo the most recent `enable_apply` that is still in effect; does nothing if there is none.

    Running calls are not interrupted.
    """
    router.asked()  # once disabled, the environment does not enable it again
    top = router.top()
    if top is not None:
        top.stop()


def activate() -> None:
    """Apply the environment variables, once, at the first use of apply.

    ``FIB_ENABLE_APPLY=1`` enables the folder of ``FIB_APPLY_PATH`` if that is set, else the dataset
    of ``FIB_DATASET_PATH``. If that variable is not set, ``FLASHINFER_TRACE_APPLY=1`` enables the
    folder of ``FLASHINFER_TRACE_APPLY_PATH``, unless FlashInfer itself handles it. A failure is
    logged as a warning, and apply stays off. ``FIB_ENABLE_TRACING`` is handled as well, because
    calls of `apply` can be traced. Does nothing while an engine waits for the first relevant call;
    see `engines`.
    """
    if not (router.quiet or router.deferred is not None or router.asked()):
        _activate()


@opaque
def _activate() -> None:
    if env.in_command_line():
        return
    if env.tracing_mentioned():
        from flashinfer_bench.tracing import api as tracing

        tracing.activate()
    ours = bool(env.set_variables().get("FIB_ENABLE_APPLY"))
    name = "FIB_ENABLE_APPLY" if ours else "FLASHINFER_TRACE_APPLY"
    with env.warned(f"{name}: apply stays off"):
        if env.apply_enabled() if ours else _theirs_wanted():
            before = router.active
            if ours:
                enable_apply()
            elif (folder := env.flashinfer_apply_path()) is not None:
                from flashinfer_bench.apply.mapping import enable_mapping

                enable_mapping(folder)
            if router.active == before:
                path = "FIB_DATASET_PATH or FIB_APPLY_PATH" if ours else f"{name}_PATH"
                raise ConfigError(f"nothing is configured: set {path}")


def asked_for() -> bool:
    """Return whether our or FlashInfer's environment variable enables apply."""
    if env.set_variables().get("FIB_ENABLE_APPLY"):
        return env.apply_mentioned()
    return env.flashinfer_apply() is not None


def _theirs_wanted() -> bool:
    """Return whether we handle FlashInfer's variable: releases before 0.6.14 ignore it."""
    value = env.flashinfer_apply()
    if value is None:
        return False
    if value != "1":
        raise ConfigError(f"FLASHINFER_TRACE_APPLY={value!r} is neither 0 nor 1")
    spec = importlib.util.find_spec("flashinfer")  # finding a submodule would import the package
    places = (spec.submodule_search_locations if spec is not None else None) or ()
    if any(Path(place, "trace_apply").is_dir() for place in places):
        logger.info(
            "FLASHINFER_TRACE_APPLY is left to FlashInfer's own Trace Apply; "
            "FIB_ENABLE_APPLY=1 and FIB_APPLY_PATH enable this one"
        )
        return False
    return True
