"""The quickest way there is here to recognise calls like those seen before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Protocol

from flashinfer_bench.apply.dispatch import native
from flashinfer_bench.apply.dispatch.codegen import compile_source
from flashinfer_bench.apply.dispatch.ordinary import facts
from flashinfer_bench.apply.dispatch.routes import never
from flashinfer_bench.apply.dispatch.tensor_guards import checker_for, tensor_guards

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    Check = Callable[..., bool]


class Recognition(Protocol):
    """Makes checks of the tensors of a call, and of what it returns.

    Attributes
    ----------
    sees_all : bool
        Whether a check of a call's tensors also asks for modes of the thread, for grad mode, and
        whether tensors that are written to share memory. If not, that is asked apart.
    """

    sees_all: bool

    def check_for(self, tensors: Sequence[torch.Tensor], written: Sequence[int]) -> Check:
        """Return a check that passes for tensors like these; `written` has positions in them."""
        ...

    def check_for_outputs(self, tensors: Sequence[torch.Tensor]) -> Check:
        """Return a check that passes for tensors like these, whatever the thread does."""
        ...


class ByTorch:
    """With the checker of torch; see `tensor_guards`.

    Parameters
    ----------
    maker : callable
        What `tensor_guards` returned.
    """

    sees_all = False

    def __init__(self, maker: Callable[..., Any]) -> None:
        self._maker = maker

    def check_for(self, tensors: Sequence[torch.Tensor], written: Sequence[int]) -> Check:
        """See `Recognition.check_for`."""
        if any(sum(tensors[index] is each for each in tensors) > 1 for index in written):
            return never  # what is written to shares its memory
        return self.check_for_outputs(tensors)

    def check_for_outputs(self, tensors: Sequence[torch.Tensor]) -> Check:
        """See `Recognition.check_for_outputs`."""
        objects = {id(each): each for each in tensors}
        check = checker_for(self._maker, *objects.values())
        return check if len(objects) == len(tensors) else _repeated(check, tensors)


def _repeated(check: Check, tensors: Sequence[torch.Tensor]) -> Check:
    """Return a check for tensors of which some are one object: torch's wants each to be another."""
    names = [f"a{index}" for index in range(len(tensors))]
    first: dict[int, str] = {}
    same = []
    for name, tensor in zip(names, tensors, strict=True):
        if first.setdefault(id(tensor), name) != name:
            same.append(f"{name} is {first[id(tensor)]}")
    source = (
        f"def recognise({', '.join(names)}):\n"
        f"    return {' and '.join(same)} and check({', '.join(first.values())})\n"
    )
    return compile_source(source, "recognise", "check of tensors", {"check": check})


class ByHelper:
    """With the helper that was compiled here; see `native`.

    Parameters
    ----------
    maker : callable
        What `native.maker` returned.
    """

    sees_all = True

    def __init__(self, maker: Callable[..., Any]) -> None:
        self._maker = maker

    def check_for(self, tensors: Sequence[torch.Tensor], written: Sequence[int]) -> Check:
        """See `Recognition.check_for`."""
        check: Check = self._maker(tensors, written)
        return check

    def check_for_outputs(self, tensors: Sequence[torch.Tensor]) -> Check:
        """See `Recognition.check_for_outputs`."""
        check: Check = self._maker(tensors, anywhere=True)
        return check


def recognition() -> Optional[Recognition]:
    """Return the quickest way that works here; None if calls must be examined in Python."""
    helper = native.maker()
    if helper is not None:
        return ByHelper(helper)
    checker = tensor_guards()
    return None if checker is None else ByTorch(checker)


def recogniser(
    by: Optional[Recognition], tensors: Sequence[torch.Tensor], written: Sequence[int] = ()
) -> Optional[Check]:
    """Return a check that passes for the tensors of a call like these, and for no others.

    Strides of dimensions with one element may differ: those of slices do.

    Parameters
    ----------
    by : Recognition, optional
        How to recognise them.
    tensors : sequence of torch.Tensor
        Those of a call, of which there should be one at least.
    written : sequence of int
        Positions of those that are written to.

    Returns
    -------
    callable or None
        Takes as many arguments as there are tensors, of any type, and keeps no tensor alive. It may
        say no in another mode of the thread. None if such tensors cannot be recognised.
    """
    if by is None or not tensors:
        return None
    try:
        check = by.check_for(tensors, written)
        return check if check(*tensors) is True else None
    except (RuntimeError, TypeError, ValueError):  # a tensor that cannot be described
        return None


def recogniser_of(by: Optional[Recognition], values: Sequence[Any]) -> Check:
    """Return a check that passes for outputs like these; one that never does, if need be."""
    asked = facts()
    plain = all(type(each) is asked.tensor or type(each) is asked.parameter for each in values)
    if by is None or not values or not plain:
        return never
    try:
        check = by.check_for_outputs(values)
        return check if check(*values) is True else never
    except (RuntimeError, TypeError, ValueError):
        return never
