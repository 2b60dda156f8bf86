"""The fastest available way to recognise calls like earlier ones.

A *maker* takes the tensors of a call, and the positions of those that are written to. It returns a
check that accepts tensors of the same exact type, dispatch keys, dtype, device, shape, strides and
``requires_grad``, in a thread where no mode is on and no gradient would be recorded, if written
tensors share no memory with others. With ``anywhere=True`` the thread is not checked.

The fastest maker is a small C++ extension of fib-native-toolkit (`fib_apply_helper`), which is
compiled into the cache in the background, or by ``fib apply build``. Without it, the guards that
torch.compile evaluates before each call of a compiled function are used:
`torch._C._dynamo.guards.TensorGuards`. They are private, so they are used only with releases of
torch that have been tested. Conditions that they do not cover are checked separately. If neither is
available, each call is examined in Python (`guards`).

TensorGuards reads the sizes of every tensor. If a tensor has none, because it is a strided nested
tensor or represents one in a transform, this raises in C++ where nothing catches it, and the
process ends. Such tensors are rejected beforehand. The exception is a tensor that a program has
kept beyond the end of a transform over nested tensors; torch cannot use such a tensor either.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench import env
from flashinfer_bench._lazy import import_string, moved
from flashinfer_bench.apply.dispatch.guards import facts
from flashinfer_bench.routing.binding import compile_source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    Check = Callable[..., bool]
    Maker = Callable[..., Check]

logger = logging.getLogger(__name__)

KNOWN_RELEASES = ("2.11", "2.13")
"""Releases of torch whose guards work as required and do not end the process."""

# The module that compiles it: provides `build_helper` and `helper_folder`.
__getattr__, __dir__ = moved(__name__, "fib_apply_helper", "fib-native-toolkit")


def recognition() -> Optional[Maker]:
    """Return the fastest maker available; None if calls must be examined in Python."""
    made = by_helper()
    if made is None and (checker := tensor_guards()) is not None:
        made = by_torch(checker)
    return made


def when_quicker(renew: Callable[[], None]) -> None:
    """Compile the helper in the background if necessary, and call a method when it is ready.

    Parameters
    ----------
    renew : bound method
        Called in another thread, or never; its object is not kept alive.
    """
    if by_helper() is None and env.apply_helper_wanted():
        # fib-native-toolkit is not installed, or no thread can be started.
        with suppress(ImportError, RuntimeError):
            import_string("fib_apply_helper:when_compiled")(renew)


def recogniser(
    by: Optional[Maker],
    tensors: Sequence[Any],
    written: Sequence[int] = (),
    *,
    anywhere: bool = False,
) -> Optional[Check]:
    """Return a check that accepts tensors like those of a given call, and no others.

    Strides of dimensions with one element may differ, as they do for slices.

    Parameters
    ----------
    by : Maker, optional
        How to recognise them.
    tensors : sequence of torch.Tensor
        The tensors of a call, at least one.
    written, anywhere
        See the module docstring.

    Returns
    -------
    callable or None
        Takes as many arguments as there are tensors, of any type, and keeps no tensor alive. None
        if such tensors cannot be recognised.
    """
    if by is None or not tensors:
        return None
    try:
        check = by(tensors, written, anywhere=anywhere)
        return check if check(*tensors) is True else None
    except (RuntimeError, TypeError, ValueError):  # a tensor that cannot be described
        return None


def recogniser_of(by: Optional[Maker], values: Sequence[Any]) -> Check:
    """Return a check that accepts outputs like these; if impossible, one that accepts none."""
    plain = all(facts().is_tensor(each) for each in values)
    return (recogniser(by, values, anywhere=True) if plain else None) or never


def never(*_args: Any) -> bool:
    """Return False."""
    return False


def by_helper() -> Optional[Maker]:
    """Return a maker that uses the compiled helper; None if none fits this torch and Python."""
    try:
        make = import_string("fib_apply_helper:helper")()
    except ImportError:  # fib-native-toolkit is not installed
        return None
    usual, masked = facts().usual, facts().masked

    def made(
        tensors: Sequence[torch.Tensor], written: Sequence[int] = (), *, anywhere: bool = False
    ) -> Check:
        check: Check = make(tuple(tensors), tuple(written), usual, masked, anywhere)
        return check

    return None if make is None else made


# --------------------------------------------------------------------------------- torch's guards


@lru_cache(maxsize=1)
def tensor_guards() -> Optional[Callable[..., Any]]:
    """Return torch's guards, if this release is known to work as required."""
    import torch

    if ".".join(torch.__version__.split(".")[:2]) not in KNOWN_RELEASES:
        return None
    try:
        from torch._C._dynamo.guards import TensorGuards
    except ImportError as error:  # torch may be built without a compiler
        logger.debug("guards in Python: %s", error)
        return None
    checker: Callable[..., Any] = TensorGuards
    return checker


def by_torch(checker: Callable[..., Any]) -> Maker:
    """Return a maker that uses the result of `tensor_guards`."""
    return partial(_check_by_torch, checker)


def _check_by_torch(
    checker: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    written: Sequence[int] = (),
    *,
    anywhere: bool = False,  # always checks the thread's keys, as part of the tensors' keys
) -> Check:
    import torch

    if any(sum(tensors[index] is each for each in tensors) > 1 for index in written):
        return never  # written memory is shared
    names = [f"a{index}" for index in range(len(tensors))]
    # The guards require distinct tensor objects.
    first: dict[int, str] = {}
    same = ""
    for name, tensor in zip(names, tensors, strict=True):
        if first.setdefault(id(tensor), name) != name:
            same += f"{name} is {first[id(tensor)]} and "
    distinct = [tensors[names.index(name)] for name in first.values()]
    # Both arguments are required: without them it reads invalid memory.
    sizes, strides = [list(each.shape) for each in distinct], [_strides(each) for each in distinct]
    made = checker(*distinct, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    nested = " or ".join(f"{name}.is_nested" for name in first.values())
    wrong = [f"not ({same}compare({', '.join(first.values())}))"]
    if not anywhere:
        wrong.append("modes()")
        if any(each.requires_grad for each in tensors):
            wrong.append("grad_enabled()")
    lines = [
        f"def check({', '.join(names)}):",
        "    try:",
        f"        if transformed() or {nested}:",
        "            return False",
        "    except Exception:  # no tensor",
        "        return False",
        f"    if {' or '.join(wrong)}:",
        "        return False",
    ]
    for place in written:
        lines += [f"    start = a{place}.data_ptr()", f"    stop = start + bytes_{place}"]
        for other in range(len(tensors)):
            if other != place and (other not in written or other < place):
                lines += [
                    f"    other = a{other}.data_ptr()",
                    f"    if start < other + bytes_{other} and other < stop:",
                    "        return False",
                ]
    namespace = {
        "transformed": torch._C._are_functorch_transforms_active,
        "compare": made.check,
        "modes": facts().modes,
        "grad_enabled": facts().grad_enabled,
    }
    # No sizes in the source, because each variant would be compiled and kept.
    for index, each in enumerate(tensors) if written else ():
        namespace[f"bytes_{index}"] = each.numel() * each.element_size()
    source = "\n".join([*lines, "    return True\n"])
    return compile_source(source, "check", namespace, "check of tensors")


def _strides(tensor: torch.Tensor) -> list[Optional[int]]:
    """Return strides, with None for those that do not matter because they address no element."""
    some = tensor.numel() > 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride if some and size > 1 else None for size, stride in pairs]
