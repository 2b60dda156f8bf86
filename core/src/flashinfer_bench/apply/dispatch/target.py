"""A built solution: how to call it in either convention, and checks of its outputs."""

from __future__ import annotations

import keyword
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Optional, Protocol

from flashinfer_bench.apply.dispatch.guards import facts, in_fresh_thread, ordinary_keys
from flashinfer_bench.apply.dispatch.recognition import never, recogniser_of
from flashinfer_bench.compile import list_outputs
from flashinfer_bench.routing.binding import compile_source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from flashinfer_bench.apply.dispatch.layout import Layout, Operand
    from flashinfer_bench.apply.dispatch.recognition import Maker
    from flashinfer_bench.apply.keys import ApplyKey
    from flashinfer_bench.compile import Runnable
    from flashinfer_bench.data import Definition

    Function = Callable[..., Any]


class Resolver(Protocol):
    """Selects and builds solutions."""

    def resolve(self, key: Optional[ApplyKey]) -> Optional[Target]:
        """Return the target for a key; None if there is none.

        Called when a key is first seen, but not during CUDA graph capture; possibly by several
        threads concurrently, and again for keys that have been dropped.
        """
        ...


@dataclass(eq=False)
class Target:
    """A built solution, ready to be called for one definition.

    Parameters
    ----------
    function : callable
        Takes positional arguments: the inputs, followed by the outputs if it is
        destination-passing.
    definition : Definition
        The definition that it implements.
    solution : str
        Name used in messages and counts.
    destination_passing : bool
        Whether it takes its outputs as arguments.
    owner : object, optional
        Kept alive as long as the target: the `Runnable` whose build contains the function.
    """

    function: Function
    definition: Definition
    solution: str
    destination_passing: bool = False
    owner: Optional[Runnable] = None

    @classmethod
    def from_runnable(
        cls, runnable: Runnable, definition: Definition, solution: Optional[str] = None
    ) -> Target:
        """Return a target that calls the function of a build directly, without the Runnable.

        Parameters
        ----------
        runnable : Runnable
            The build. Cleaning it up later does not affect the target's function.
        definition : Definition
            The definition to call it for.
        solution : str, optional
            Name of the solution; default: that of the build. Solutions that differ only in name
            share a build.
        """
        return cls(
            runnable._callable,
            definition,
            solution=solution or runnable.metadata.solution_name,
            destination_passing=runnable.metadata.destination_passing_style,
            owner=runnable,
        )

    def explained(self, error: Exception) -> Exception:
        """Return the builder's explanation of an error, or the error itself."""
        return (self.owner and self.owner.explanation(error)) or error

    def __repr__(self) -> str:
        return f"<Target {self.solution!r} of {self.definition.name!r}>"


def by_names(
    function: Function,
    names: Sequence[str],
    fixed: Optional[Mapping[str, Any]] = None,
    order: Optional[Sequence[str]] = None,
) -> Function:
    """Return a function of positional arguments that calls `function` with keyword arguments.

    Parameters
    ----------
    function : callable
        The function to call.
    names : sequence of str
        Names of the arguments.
    fixed : mapping, optional
        Additional arguments, the same in each call.
    order : sequence of str, optional
        If given, pass all arguments by position, in this order of their names.
    """
    always = dict(fixed or {})
    passed = [*names, *always] if order is None else [*order]
    if order is None and not all(n.isidentifier() and not keyword.iskeyword(n) for n in passed):
        return lambda *args: function(**dict(zip(names, args, strict=True)), **always)
    mine = {name: f"a{index}" for index, name in enumerate(names)}
    values = {**{name: f"fixed[{name!r}]" for name in always}, **mine}
    given = ", ".join(values[n] if order is not None else f"{n}={values[n]}" for n in passed)
    source = f"def by_name({', '.join(mine.values())}):\n    return call({given})\n"
    return compile_source(source, "by_name", {"call": function, "fixed": always}, "by name")


# A CUDA graph replays kernel launches: a kernel's code, and everything its module holds, must exist
# as long as the graph. The lifetime of a graph is unknown, so a target that has served tensors on a
# GPU is never released. There are at most as many of them as built solutions.
kept: dict[int, tuple[Any, ...]] = {}


def keep_for_ever(target: Target) -> None:
    """Keep the function of a target, and its build."""
    kept[id(target.function)] = (target.function, target.owner)


# ---------------------------------------------------------------------------------- output checks


class WrongOutputError(Exception):
    """A solution returned something that is not a valid output of its definition."""


def checked_outputs(layout: Layout, result: Any, args: Sequence[Any]) -> list[Any]:
    """Return the outputs of a solution as a list in declaration order.

    Parameters
    ----------
    layout : Layout
        Layout of the definition.
    result : Any
        The solution's return value.
    args : sequence
        The inputs, which the guard has accepted.

    Raises
    ------
    WrongOutputError
        If the number of outputs, or the type, dtype, device or shape of one, does not match the
        definition for these inputs.
    """
    wanted = layout.outputs
    if not wanted:
        return []  # it writes its results; the return value is ignored
    try:
        outputs = list_outputs(result, layout.definition)
    except ValueError as error:
        raise WrongOutputError(str(error)) from error
    if len(outputs) != len(wanted):
        raise WrongOutputError(f"returned {len(outputs)} outputs instead of {len(wanted)}")
    sizes = layout.sizes(args)
    device = args[layout.tensors[0]].device if layout.tensors else None
    for operand, output in zip(wanted, outputs, strict=True):
        wrong = _wrong(operand, output, sizes, device)
        if wrong:
            shape = "a scalar" if operand.shape is None else f"shape {list(operand.shape)}"
            declared = f"the definition declares {shape} of {operand.dtype}"
            raise WrongOutputError(f"output {operand.name!r} is {wrong}; {declared}")
    return outputs


def _wrong(operand: Operand, output: Any, sizes: dict[str, int], device: Any) -> str:
    """Return how an output deviates from its declaration; empty if it does not."""
    asked = facts()
    if operand.shape is None and type(output) is operand.scalar:
        return ""
    if not asked.is_tensor(output):
        return f"a {type(output).__name__}"
    if device is not None and output.device != device:
        return f"a tensor on {output.device}"
    if asked.keys_of(output) not in ordinary_keys(output.device):
        return "a tensor that is not plain numbers in memory"
    if output.dtype is not operand.dtype:
        return f"a tensor of {output.dtype}"
    declared, shape = operand.shape or (), output.shape
    # The first output sets the axes that no input has.
    fits = len(declared) == len(shape) and all(
        sizes.setdefault(size, here) == here if isinstance(size, str) else size == here
        for size, here in zip(declared, shape, strict=True)
    )
    return "" if fits else f"a tensor of shape {list(shape)}"


def packed(outputs: Sequence[Any]) -> Any:
    """Return outputs in the form of a call's result: one unwrapped, several as a tuple, or None."""
    if len(outputs) == 1:
        return outputs[0]
    return tuple(outputs) if outputs else None


# ---------------------------------------------------------------------------- calling conventions


def function_for(
    target: Target, layout: Layout, args: Sequence[Any], by: Optional[Maker], *, into: bool
) -> Optional[Function]:
    """Return how to call a target with arguments of these shapes.

    Parameters
    ----------
    target : Target
        The target.
    layout : Layout
        Layout of its definition.
    args : sequence
        Inputs, and outputs if `into`; the guard has accepted them.
    by : Maker, optional
        How to recognise outputs like earlier ones.
    into : bool
        Whether outputs are given.

    Returns
    -------
    callable or None
        None if outputs must be allocated and their shapes do not follow from the inputs.
    """
    if into == target.destination_passing:
        return target.function
    if into:
        return _copying(target.function, layout, by)
    return _allocating(target.function, layout, args) if layout.allocatable else None


def _copying(function: Function, layout: Layout, by: Optional[Maker]) -> Function:
    """Return a function of inputs and outputs, for arguments of the same shapes each time."""
    count = len(layout.inputs)
    single = len(layout.outputs) == 1
    # Recognises an output like the previous one, which has been checked in full.
    usual: Function = never

    def into(*args: Any) -> None:
        nonlocal usual
        inputs = args[:count]
        result = function(*inputs)
        if single and usual(result):
            args[count].copy_(result)
            return
        outputs, places = checked_outputs(layout, result, inputs), args[count:]
        for output, place in zip(outputs, places, strict=True):
            # The destination may have axes that no input has.
            shape = list(getattr(output, "shape", ()))
            if shape != list(place.shape):
                raise WrongOutputError(
                    f"an output has shape {shape}, its place {list(place.shape)}"
                )
        for output, place in zip(outputs, places, strict=True):
            place.fill_(output) if isinstance(output, (bool, int, float)) else place.copy_(output)
        if single:
            usual = recogniser_of(by, outputs)

    return into


def _allocating(function: Function, layout: Layout, args: Sequence[Any]) -> Function:
    """Return a function of the inputs that allocates outputs for inputs of exactly these shapes."""
    import torch

    sizes = layout.sizes(args)
    device = args[layout.tensors[0]].device
    allocate = _quick_allocator(device.type) or _public_allocator(device)
    namespace: dict[str, Any] = {"call": function, "allocate": allocate}
    inputs = [f"a{index}" for index in range(len(layout.inputs))]
    outputs = [f"o{index}" for index in range(len(layout.outputs))]
    lines = [f"def value({', '.join(inputs)}):"]
    for name, operand in zip(outputs, layout.outputs, strict=True):
        shape = tuple(sizes[s] if isinstance(s, str) else s for s in operand.shape or ())
        strides = torch.empty(shape, device="meta").stride()
        place: dict[str, Any] = {f"shape_{name}": shape, f"stride_{name}": strides}
        place[f"dtype_{name}"] = operand.dtype
        namespace |= place
        lines.append(f"    {name} = allocate({', '.join(place)})")
    result = outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})" if outputs else "None"
    lines += [f"    call({', '.join([*inputs, *outputs])})", f"    return {result}\n"]
    return compile_source("\n".join(lines), "value", namespace, f"outputs of {layout.name!r}")


def _public_allocator(device: torch.device) -> Function:
    import torch

    def allocate(shape: tuple[int, ...], stride: tuple[int, ...], dtype: Any) -> torch.Tensor:
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)

    return allocate


@lru_cache(maxsize=8)
def _quick_allocator(kind: str) -> Optional[Function]:
    """Return the allocator of compiled graphs, three times as fast, if it works here.

    It allocates on the current device of its kind.
    """
    import torch

    try:
        from torch._C._dynamo import guards

        allocate: Function = getattr(guards, f"_empty_strided_{kind}")
        # Allocates no memory: a CUDA graph may be under capture.
        made = in_fresh_thread(allocate, (0, 3), (3, 1), torch.bfloat16)
        found = (type(made), tuple(made.shape), made.dtype, made.device.type)
    except (ImportError, AttributeError, RuntimeError, TypeError):  # private API
        return None
    return allocate if found == (torch.Tensor, (0, 3), torch.bfloat16, kind) else None
