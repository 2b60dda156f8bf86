"""A built solution, ready to be called for one definition in either convention."""

from __future__ import annotations

import keyword
import logging
from typing import TYPE_CHECKING, Any, Literal, Optional, Protocol

from flashinfer_bench.apply.dispatch.codegen import compile_source
from flashinfer_bench.compile.outputs import OutputAllocator, copy_outputs, list_outputs, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

    from flashinfer_bench.apply.keys import ApplyKey
    from flashinfer_bench.compile import Runnable
    from flashinfer_bench.data import Definition

    Function = Callable[..., Any]

Style = Literal["value", "destination"]
"""Whether a function returns its outputs, or takes them as arguments."""

logger = logging.getLogger(__name__)


class Resolver(Protocol):
    """Chooses and builds solutions."""

    def resolve(self, key: Optional[ApplyKey]) -> Optional[Target]:
        """Return what takes the calls with a key; None if nothing does.

        Called when a key is first seen, not while a CUDA graph is captured; perhaps by several
        threads at once, and again for keys that have been forgotten.
        """
        ...


class Target:
    """A built solution, ready to be called for one definition.

    Parameters
    ----------
    function : callable
        Takes positional arguments: the inputs, and the outputs after them if it is
        destination-passing.
    definition : Definition
        What it computes.
    solution : str
        What it is called in messages and counts.
    destination_passing : bool
        Whether it takes its outputs as arguments.
    owner : object, optional
        Kept alive as long as the target: a `Runnable`, whose build the function is part of.

    Attributes
    ----------
    native_style : str
        ``"value"`` or ``"destination"``: what `function` is.
    value : callable
        ``value(*inputs)`` returns one output as itself, several as a tuple, none as None. Of a
        destination-passing function they are allocated, on the device of the first input tensor.
    into : callable
        ``into(*inputs, *outputs)`` returns None. What a value-returning function returns is copied;
        a ValueError says that it does not fit.
    """

    __slots__ = (
        "__weakref__",
        "definition",
        "function",
        "into",
        "native_style",
        "owner",
        "solution",
        "value",
    )

    def __init__(
        self,
        function: Function,
        definition: Definition,
        *,
        solution: str,
        destination_passing: bool,
        owner: Optional[Runnable] = None,
    ) -> None:
        self.function = function
        self.definition = definition
        self.solution = solution
        self.owner = owner
        self.native_style: Style = "destination" if destination_passing else "value"
        self.value: Function
        self.into: Function
        if destination_passing:
            self.value, self.into = _allocating(function, definition), _silent(function)
        else:
            self.value, self.into = _unpacking(function, definition), _copying(function, definition)

    @classmethod
    def from_runnable(
        cls, runnable: Runnable, definition: Definition, solution: Optional[str] = None
    ) -> Target:
        """Return a target that calls the function of a build, without what is around it.

        Parameters
        ----------
        runnable : Runnable
            The build. Cleaning it up later does not take the function away from the target.
        definition : Definition
            What is to be called.
        solution : str, optional
            Name of the solution; default: the one that was built. Solutions that differ in nothing
            but their name share a build.
        """
        return cls(
            runnable._callable,
            definition,
            solution=solution or runnable.metadata.solution_name,
            destination_passing=runnable.metadata.destination_passing_style,
            owner=runnable,
        )

    @classmethod
    def from_callable(
        cls,
        function: Function,
        definition: Definition,
        *,
        by_keyword: bool = False,
        destination_passing: bool = False,
        solution: Optional[str] = None,
    ) -> Target:
        """Return a target that calls a function of the user.

        Parameters
        ----------
        function : callable
            Takes the definition's inputs (and outputs, if it is destination-passing).
        definition : Definition
            What it computes.
        by_keyword : bool
            Whether it takes them by the names that the definition gives them, not by position.
        destination_passing : bool
            Whether it takes its outputs as arguments.
        solution : str, optional
            What to call it; default: its own name.
        """
        name = solution or getattr(function, "__qualname__", None) or type(function).__name__
        if by_keyword:
            names = [*definition.inputs, *(definition.outputs if destination_passing else ())]
            function = by_names(function, names)
        return cls(function, definition, solution=name, destination_passing=destination_passing)

    def explained(self, error: Exception) -> Exception:
        """Return what the builder makes of an error, or the error itself.

        Languages that compile when a function is first called tell a failed build this way.
        """
        explain = self.owner._explain if self.owner is not None else None
        if explain is None:
            return error
        try:
            return explain(error) or error
        except (Exception, SystemExit):  # a plugin's own failure must not hide `error`
            logger.warning("explaining an error of %r failed", self, exc_info=True)
            return error

    def __repr__(self) -> str:
        return f"<Target {self.solution!r} of {self.definition.name!r}, {self.native_style}>"


def by_names(function: Function, names: list[str]) -> Function:
    """Return a function of positional arguments that calls `function` with them by name."""
    if not all(name.isidentifier() and not keyword.iskeyword(name) for name in names):
        return lambda *args: function(**dict(zip(names, args, strict=True)))
    mine = [f"a{index}" for index in range(len(names))]
    given = ", ".join(f"{name}={each}" for name, each in zip(names, mine, strict=True))
    source = f"def by_name({', '.join(mine)}):\n    return call({given})\n"
    return compile_source(source, "by_name", "by name", {"call": function})


def _silent(function: Function) -> Function:
    def into(*args: Any) -> None:
        function(*args)

    return into


def _allocating(function: Function, definition: Definition) -> Function:
    allocator: Optional[OutputAllocator] = None

    def value(*inputs: Any) -> Any:
        nonlocal allocator
        if allocator is None:
            allocator = OutputAllocator(definition)
        outputs = allocator.allocate(inputs)
        function(*inputs, *outputs)
        return outputs[0] if len(outputs) == 1 else unpack(tuple(outputs), None)

    return value


def _unpacking(function: Function, definition: Definition) -> Function:
    def value(*inputs: Any) -> Any:
        result = function(*inputs)
        if isinstance(result, (tuple, list, dict)):
            return unpack(tuple(list_outputs(result, definition)), definition)
        return result

    return value


def _copying(function: Function, definition: Definition) -> Function:
    count, names = len(definition.inputs), list(definition.outputs)

    def into(*args: Any) -> None:
        results = list_outputs(function(*args[:count]), definition)
        copy_outputs(results, args[count:], names)

    return into
