"""Random definitions whose results are exact in every type, and the inputs to call them with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

DTYPES = ("float32", "float16", "bfloat16", "int32", "int64")
SIZES = (1, 2, 3, 4, 6, 8)


@dataclass(frozen=True)
class Argument:
    """An input: its name, the axes of its shape (None for a scalar), and its type."""

    name: str
    axes: Optional[tuple[str, ...]]
    dtype: str


@dataclass(frozen=True)
class Problem:
    """A definition: the first output is the sum of all inputs, the second twice the first input.

    The first input has all axes, and its type is that of the outputs; others have the last axes,
    so that they can be added to it.
    """

    name: str
    op_type: str
    axes: tuple[tuple[str, Optional[int]], ...]  # None for a variable axis
    inputs: tuple[Argument, ...]
    outputs: tuple[str, ...]

    @property
    def dtype(self) -> str:
        return self.inputs[0].dtype

    @property
    def coarse(self) -> bool:
        """Whether something is of 16 bits, so that results may be as coarse."""
        return any(each.dtype.endswith("16") for each in self.inputs)

    @property
    def variable(self) -> tuple[str, ...]:
        return tuple(name for name, size in self.axes if size is None)

    @property
    def flags(self) -> tuple[str, ...]:
        """The scalars that are part of a key: whole numbers given to attention."""
        scalars = (each for each in self.inputs if each.axes is None and each.dtype == "int32")
        return tuple(each.name for each in scalars) if self.op_type == "gqa_paged" else ()

    def sizes(self, values: Sequence[int]) -> dict[str, int]:
        """Return the size of each axis, with `values` for the variable ones."""
        given = dict(zip(self.variable, values, strict=True))
        return {name: given[name] if size is None else size for name, size in self.axes}

    def record(self) -> dict[str, Any]:
        """Return the definition as a dataset has it."""
        axes = {
            name: {"type": "var"} if size is None else {"type": "const", "value": size}
            for name, size in self.axes
        }
        whole = list(self.inputs[0].axes or ())
        names = ", ".join(each.name for each in self.inputs)
        return {
            "name": self.name,
            "op_type": self.op_type,
            "axes": axes,
            "inputs": {
                each.name: {
                    "shape": None if each.axes is None else list(each.axes),
                    "dtype": each.dtype,
                }
                for each in self.inputs
            },
            "outputs": {name: {"shape": whole, "dtype": self.dtype} for name in self.outputs},
            "reference": f"def run({names}):\n    raise NotImplementedError\n",
        }


def random_problem(rng: random.Random, name: str) -> Problem:
    """Draw a definition of 1 to 3 inputs, 0 to 2 variable axes, and 1 or 2 outputs."""
    variable = rng.randint(0, 2)
    axes: list[tuple[str, Optional[int]]] = [(f"V{index}", None) for index in range(variable)]
    axes.insert(rng.randint(0, len(axes)), ("C", rng.choice(SIZES)))
    if rng.random() < 0.3:
        axes.append(("D", rng.choice(SIZES)))
    names = tuple(name for name, _ in axes)
    inputs = [Argument("x0", names, rng.choice(DTYPES))]
    for index in range(1, rng.randint(1, 3)):
        inputs.append(_further_input(rng, f"x{index}", names))
    outputs = ("y0",) if rng.random() < 0.7 else ("y0", "y1")
    kind = rng.choice(("op", "op", "gemm", "gqa_paged", "rmsnorm"))
    return Problem(name, kind, tuple(axes), tuple(inputs), outputs)


def _further_input(rng: random.Random, name: str, axes: tuple[str, ...]) -> Argument:
    if rng.random() < 0.2:
        return Argument(name, None, rng.choice(("int32", "float32")))
    return Argument(name, axes[rng.randint(0, len(axes) - 1) :], rng.choice(DTYPES))


def make_inputs(problem: Problem, sizes: Mapping[str, int], rng: random.Random) -> list[Any]:
    """Draw small whole numbers, so that sums are exact in every type; flags are 1 as recorded."""
    import torch

    values: list[Any] = []
    for each in problem.inputs:
        if each.axes is None:
            number = 1 if each.name in problem.flags else rng.randint(-3, 3)
            values.append(number if each.dtype.startswith("int") else float(number))
            continue
        shape = [sizes[axis] for axis in each.axes]
        generator = torch.Generator().manual_seed(rng.getrandbits(32))
        drawn = torch.randint(-3, 4, shape, generator=generator)
        values.append(drawn.to(getattr(torch, each.dtype)))
    return values


def make_outputs(problem: Problem, sizes: Mapping[str, int]) -> list[Any]:
    """Allocate the outputs, filled with what no result is."""
    import torch

    shape = [sizes[axis] for axis in problem.inputs[0].axes or ()]
    return [torch.full(shape, 55, dtype=getattr(torch, problem.dtype)) for _ in problem.outputs]


def expected(problem: Problem, inputs: Sequence[Any]) -> list[Any]:
    """Return the right outputs, whatever the layout of the inputs is."""
    first = inputs[0]
    total = first + 0
    for value in inputs[1:]:
        total = total + (value.to(first.dtype) if hasattr(value, "to") else int(value))
    return [total.contiguous(), (first * 2).contiguous()][: len(problem.outputs)]
