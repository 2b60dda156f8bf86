"""The quickest way on this machine to recognise calls like earlier ones.

A *maker* is given the tensors of a call, and positions of those that are written to. It returns a
check that passes for tensors like these: of the same exact type, dispatch keys, dtype, device,
shape, strides and ``requires_grad``, in a thread where no mode is on and no gradient would be
recorded, with what is written to sharing no memory. With ``anywhere=True`` the thread is not asked.

The quickest one is a small C++ extension of fib-native-toolkit (`fib_apply_helper`), which is
compiled into the cache in the background, or by ``fib apply build``. Without it there is what
torch.compile asks before each call of a compiled function: `torch._C._dynamo.guards.TensorGuards`.
It is not public, so it is used only with releases of torch that it was tried out with. What it
passes over is asked apart. Without that, too, each call is examined in Python (`guards`).

TensorGuards asks any tensor for its sizes. One that has none, because it is a nested tensor of the
strided kind or stands for one in a transform, raises in C++ where nothing catches that, and the
process ends. Such tensors are turned away before; but for one that a program has kept from a
transform over nested tensors beyond its end, with which torch can do nothing either.
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
"""Releases of torch whose checker does what is wanted of it, and does not end the process."""

# What compiles it: `build_helper`, and `helper_folder`.
__getattr__, __dir__ = moved(__name__, "fib_apply_helper", "fib-native-toolkit")


def recognition() -> Optional[Maker]:
    """Return the quickest maker that works here; None if calls must be examined in Python."""
    made = by_helper()
    if made is None and (checker := tensor_guards()) is not None:
        made = by_torch(checker)
    return made


def when_quicker(renew: Callable[[], None]) -> None:
    """Have the helper compiled, if it is not there, and a method called once it is.

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
    """Return a check that passes for the tensors of a call like these, and for no others.

    Strides of dimensions with one element may differ: those of slices do.

    Parameters
    ----------
    by : Maker, optional
        How to recognise them.
    tensors : sequence of torch.Tensor
        Those of a call, of which there should be one at least.
    written, anywhere
        See the top of this module.

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
    """Return a check that passes for outputs like these; one that never does, if need be."""
    plain = all(facts().is_tensor(each) for each in values)
    return (recogniser(by, values, anywhere=True) if plain else None) or never


def never(*_args: Any) -> bool:
    """Return False."""
    return False


def by_helper() -> Optional[Maker]:
    """Return a maker by the compiled helper; None if there is none for this torch and Python."""
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


# ------------------------------------------------------------------------ the checker of torch


@lru_cache(maxsize=1)
def tensor_guards() -> Optional[Callable[..., Any]]:
    """Return the checker of torch, if it is known to do what is wanted of it."""
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
    """Return a maker by what `tensor_guards` returned."""
    return partial(_check_by_torch, checker)


def _check_by_torch(
    checker: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    written: Sequence[int] = (),
    *,
    anywhere: bool = False,  # it looks at the thread's keys as they show in tensors
) -> Check:
    import torch

    if any(sum(tensors[index] is each for each in tensors) > 1 for index in written):
        return never  # what is written to shares its memory
    names = [f"a{index}" for index in range(len(tensors))]
    # The checker wants each tensor to be another object.
    first: dict[int, str] = {}
    same = ""
    for name, tensor in zip(names, tensors, strict=True):
        if first.setdefault(id(tensor), name) != name:
            same += f"{name} is {first[id(tensor)]} and "
    distinct = [tensors[names.index(name)] for name in first.values()]
    # Both must be given: without them it reads what is not there.
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
    # No sizes in the source: that would be compiled, and kept, for each.
    for index, each in enumerate(tensors) if written else ():
        namespace[f"bytes_{index}"] = each.numel() * each.element_size()
    source = "\n".join([*lines, "    return True\n"])
    return compile_source(source, "check", namespace, "check of tensors")


def _strides(tensor: torch.Tensor) -> list[Optional[int]]:
    """Return strides, None where any will do: no element is found by them."""
    some = tensor.numel() > 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride if some and size > 1 else None for size, stride in pairs]
