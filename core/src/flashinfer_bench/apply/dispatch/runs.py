"""How a target is called: in its own convention, or in the other one."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from flashinfer_bench.apply.dispatch.codegen import compile_source
from flashinfer_bench.apply.dispatch.ordinary import in_fresh_thread
from flashinfer_bench.apply.dispatch.recognition import recogniser_of, recognition
from flashinfer_bench.apply.dispatch.routes import never

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from flashinfer_bench.apply.dispatch.answers import Answers
    from flashinfer_bench.apply.dispatch.layout import Layout
    from flashinfer_bench.apply.dispatch.target import Target

    Function = Callable[..., Any]
    Allocate = Callable[[tuple[int, ...], tuple[int, ...], Any], torch.Tensor]


class Run(NamedTuple):
    """How the calls of one pattern are made.

    Parameters
    ----------
    function : callable
        Takes the arguments of the call.
    checks : bool
        Whether what it returns must be checked.
    """

    function: Function
    checks: bool


def run_for(
    target: Target, layout: Layout, answers: Answers, args: Sequence[Any], *, into: bool
) -> Optional[Run]:
    """Return how to call a target with arguments of these shapes.

    Parameters
    ----------
    target : Target
        What is called.
    layout : Layout
        Of its definition.
    answers : Answers
        Checks what it returns before that is copied.
    args : sequence
        Inputs, and outputs if `into`; the guard has let them through.
    into : bool
        Whether outputs are given.

    Returns
    -------
    Run or None
        None if outputs are to be allocated, and their shapes do not follow from the inputs.
    """
    native = target.native_style == "destination"
    if into:
        if native:
            return Run(target.function, checks=False)
        return Run(_copying(target.function, layout, answers), checks=False)
    if not native:
        return Run(target.function, checks=True)
    if not layout.allocatable:
        return None
    return Run(_allocating(target.function, layout, args), checks=False)


def _copying(function: Function, layout: Layout, answers: Answers) -> Function:
    """Return a function of inputs and outputs, for arguments of the same shapes each time."""
    count = len(layout.inputs)
    single = len(layout.outputs) == 1
    # Recognises an output like the last one, which has been checked in full.
    usual: Function = never

    def into(*args: Any) -> None:
        nonlocal usual
        inputs = args[:count]
        result = function(*inputs)
        if single and usual(result):
            args[count].copy_(result)
            return
        outputs = answers.check(result, inputs)
        answers.require_fit(outputs, args[count:])
        for place, output in zip(args[count:], outputs, strict=True):
            place.fill_(output) if isinstance(output, (bool, int, float)) else place.copy_(output)
        if single:
            usual = recogniser_of(recognition(), outputs)

    return into


def _allocating(function: Function, layout: Layout, args: Sequence[Any]) -> Function:
    """Return a function of the inputs that allocates outputs for inputs of these very shapes."""
    sizes = layout.sizes(args)
    device = args[layout.tensors[0]].device
    namespace: dict[str, Any] = {"call": function, "device": device}
    allocate, places = _allocator(device), []
    for index, operand in enumerate(layout.outputs):
        shape = tuple(
            sizes[each] if isinstance(each, str) else each for each in operand.shape or ()
        )
        place = f"shape{index}, stride{index}, dtype{index}"
        namespace[f"shape{index}"], namespace[f"stride{index}"] = shape, _strides(shape)
        namespace[f"dtype{index}"] = operand.dtype
        places.append(f"allocate({place})")
    namespace["allocate"] = allocate
    return compile_source(
        _allocating_source(len(layout.inputs), places), "value", f"{layout.name!r}", namespace
    )


def _allocating_source(inputs: int, places: list[str]) -> str:
    given = [f"a{index}" for index in range(inputs)]
    outputs = [f"o{index}" for index in range(len(places))]
    made = [f"    {name} = {place}\n" for name, place in zip(outputs, places, strict=True)]
    result = outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})" if outputs else "None"
    return "".join(
        [
            f"def value({', '.join(given)}):\n",
            *made,
            f"    call({', '.join([*given, *outputs])})\n",
            f"    return {result}\n",
        ]
    )


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _allocator(device: torch.device) -> Allocate:
    """Return what allocates on `device`, which is the current one."""
    return _quick_allocator(device.type) or _public_allocator(device)


def _public_allocator(device: torch.device) -> Allocate:
    import torch

    empty = torch.empty_strided

    def allocate(shape: tuple[int, ...], stride: tuple[int, ...], dtype: Any) -> torch.Tensor:
        return empty(shape, stride, dtype=dtype, device=device)

    return allocate


@lru_cache(maxsize=8)
def _quick_allocator(kind: str) -> Optional[Allocate]:
    """Return what compiled graphs allocate with, in a third of the time, if it works here."""
    try:
        from torch._C._dynamo import guards

        allocate: Allocate = getattr(guards, f"_empty_strided_{kind}")
    except (ImportError, AttributeError):
        return None
    return allocate if in_fresh_thread(_allocates, allocate, kind) else None


def _allocates(allocate: Allocate, kind: str) -> bool:
    import torch

    try:
        # Nothing that takes memory: a CUDA graph may be under capture.
        made = [allocate((0, 3), (3, 1), torch.bfloat16), allocate((0,), (1,), torch.float32)]
    except (RuntimeError, TypeError):
        return False
    wanted = [((0, 3), torch.bfloat16), ((0,), torch.float32)]
    return [(tuple(each.shape), each.dtype) for each in made] == wanted and all(
        type(each) is torch.Tensor and each.device.type == kind and each.is_contiguous()
        for each in made
    )
