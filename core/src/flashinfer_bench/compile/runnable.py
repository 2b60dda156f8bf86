"""A built solution that can be called."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, NoReturn, Optional

from pydantic import BaseModel, Field

from flashinfer_bench._lazy import OldAttributes, old_call, old_parameters
from flashinfer_bench.data import Definition
from flashinfer_bench.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

_logger = logging.getLogger(__name__)


class RunnableMetadata(BaseModel):
    """How a `Runnable` was built.

    Parameters
    ----------
    build_type : str
        The kind of build: ``python``, ``triton``, ``tvm_ffi``, ``torch``, …
    definition_name : str
        The definition whose interface it has.
    solution_name : str
        The solution that it was built from. Solutions that differ only in name share one Runnable,
        which has the name of the first.
    destination_passing_style : bool
        Whether it takes its outputs as arguments.
    definition : Definition, optional
        The definition itself; required for calls by name and for converting between calling
        conventions.
    misc : dict
        Additional data from the builder.
    """

    build_type: str
    definition_name: str
    solution_name: str
    destination_passing_style: bool = True
    definition: Optional[Definition] = None
    misc: dict[str, Any] = Field(default_factory=dict)


class Runnable(OldAttributes):
    """A solution as a function.

    ``runnable(*args)`` calls the built function directly: with the inputs, or with inputs and
    outputs if it is destination-passing. ``runnable(x=…, y=…)`` takes arguments by their names in
    the definition. Both return a single output unwrapped, several as a tuple, and None if there are
    none.

    Parameters
    ----------
    callable : callable
        The built function.
    metadata : RunnableMetadata
        How it was built.
    cleaner : callable, optional
        Releases the resources of the build; called at most once.
    explain : callable, optional
        ``explain(error)`` is called when a call raises an `Exception`, and returns a `BuildError`
        or None. A BuildError is raised in place of the error, which becomes its cause. This is for
        languages that compile on first call; successful calls have no overhead.

    Attributes
    ----------
    closed : bool
        Whether `cleanup` has been called.
    """

    @old_parameters
    def __init__(
        self,
        callable: Callable[..., Any],
        metadata: RunnableMetadata,
        cleaner: Optional[Callable[[], None]] = None,
        *,
        explain: Optional[Callable[[Exception], Optional[BuildError]]] = None,
    ) -> None:
        if not hasattr(metadata, "misc"):
            metadata, cleaner = old_call("runnable_parts", metadata, cleaner)
        self._callable = callable
        self.metadata = metadata
        self._definition = definition = metadata.definition
        self._inputs = tuple(definition.inputs) if definition is not None else ()
        self._total = len(self._inputs) + (len(definition.outputs) if definition is not None else 0)
        # True for exact types that need no unpacking: avoids an isinstance check in most calls.
        self._plain: type = type(None)
        self._cleaner = cleaner
        self._explain = explain
        self._lock = threading.Lock()
        self.closed = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call with the positional arguments of the built function, or by name.

        Parameters
        ----------
        *args
            Inputs in declaration order; for a destination-passing function, outputs after them.
        **kwargs
            Arguments by name; see `call_kwargs`.

        Returns
        -------
        Any
            One output, a tuple of them, or None.

        Raises
        ------
        BuildError
            If the function compiles on call and the compilation fails.
        """
        if kwargs:
            return self._call_named(args, kwargs)
        try:
            result = self._callable(*args)
        except Exception as error:
            self._raise_explained(error)
            raise
        if type(result) is self._plain:
            return result
        return self._unpack(result)

    def __repr__(self) -> str:
        state = " (cleaned up)" if self.closed else ""
        return f"<Runnable {self.metadata.solution_name!r}: {self.metadata.build_type}{state}>"

    def call_kwargs(self, **kwargs: Any) -> Any:
        """Call with arguments by their names in the definition.

        If the metadata have no definition, the names are passed to the built function unchanged.

        Parameters
        ----------
        **kwargs
            All inputs, or all inputs and outputs.

        Returns
        -------
        Any
            With inputs only, the outputs: a single one unwrapped, several as a tuple. With outputs
            among the arguments, None; the results have been written to them.

        Raises
        ------
        ValueError
            If an argument is missing or unknown.
        """
        return self._call_named((), kwargs)

    def call_destination_passing(self, *args: Any) -> None:
        """Call with inputs and outputs, and write the results to the outputs.

        A value-returning function is called with the inputs, and its results are copied.

        Parameters
        ----------
        *args
            Inputs in declaration order, then outputs in declaration order.

        Raises
        ------
        ValueError
            If the number of arguments is wrong, the metadata have no definition, or the results of
            a value-returning function differ in number, shape or dtype from the outputs passed in.
        """
        self._check_count(args, self._total)
        if self.metadata.destination_passing_style:
            self._call(*args)
            return
        definition = self._require_definition()
        inputs = len(self._inputs)
        results = list_outputs(self._call(*args[:inputs]), definition)
        copy_outputs(results, args[inputs:], list(definition.outputs))

    def call_value_returning(self, *args: Any) -> Any:
        """Call with inputs only and return the outputs.

        A destination-passing function gets newly allocated, uninitialised outputs on the device of
        the first input tensor; their sizes are derived from the shapes of the inputs.

        Parameters
        ----------
        *args
            Inputs in declaration order.

        Returns
        -------
        Any
            A single output unwrapped, several as a tuple, or None. A scalar output of a
            destination-passing function is a zero-dimensional tensor.

        Raises
        ------
        ValueError
            If the number of arguments is wrong, the metadata have no definition, or the size of an
            output cannot be derived from the inputs.
        """
        self._check_count(args, len(self._inputs))
        if not self.metadata.destination_passing_style:
            return self._unpack(self._call(*args))
        outputs = self._outputs_for(args)
        self._call(*args, *outputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs) or None

    def cleanup(self) -> None:
        """Release the resources of the build; idempotent. Later calls raise an error."""
        with self._lock:
            cleaner, self._cleaner = self._cleaner, None
            self._callable = self._refuse
            self._explain = None
            self.closed = True
        if cleaner is not None:
            cleaner()

    close = cleanup

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise RuntimeError(
            f"the runnable of solution {self.metadata.solution_name!r} has been cleaned up; "
            "build it again"
        )

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._callable(*args, **kwargs)
        except Exception as error:
            self._raise_explained(error)
            raise

    def explanation(self, error: Exception) -> Optional[BuildError]:
        """Return the builder's explanation of an error of the function, or None.

        Languages that compile on first call report a failed build this way.
        """
        try:
            found = self._explain(error) if self._explain is not None else None
        except (Exception, SystemExit):  # the plugin's own failure must not hide `error`
            _logger.warning("explaining an error of %r failed", self, exc_info=True)
            return None
        return found if isinstance(found, BuildError) else None

    def _raise_explained(self, error: Exception) -> None:
        """Raise the explanation of `error`; return if there is none."""
        explained = self.explanation(error)
        if explained is None:
            return
        try:
            raise explained from error
        finally:
            # Its traceback references this frame: a reference cycle would keep the arguments alive.
            del explained, error

    def _unpack(self, result: Any) -> Any:
        if isinstance(result, dict) and self._definition is not None:
            result = tuple(_in_order(result, self._definition))
        if isinstance(result, tuple) and len(result) < 2:
            return result[0] if result else None
        if not isinstance(result, (tuple, dict)):
            self._plain = type(result)
        return result

    def _call_named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        definition = self._definition
        if definition is None:
            return self._unpack(self._call(*args, **kwargs))
        if not args and kwargs.keys() == definition.inputs.keys():
            return self.call_value_returning(*[kwargs[name] for name in self._inputs])
        merged = definition.merge_kwargs_to_args(args, kwargs)
        if len(merged) == len(self._inputs):
            return self.call_value_returning(*merged)
        self.call_destination_passing(*merged)
        return None

    def _require_definition(self) -> Definition:
        if self._definition is None:
            raise ValueError(
                f"the metadata of solution {self.metadata.solution_name!r} have no definition, "
                "which is needed to convert between calling conventions"
            )
        return self._definition

    def _outputs_for(self, args: Sequence[Any]) -> list[torch.Tensor]:
        """Allocate outputs on the device of the first tensor input; a scalar has no dimensions."""
        import torch

        definition = self._require_definition()
        named = dict(zip(self._inputs, args, strict=True))
        places = definition.var_axes_bindings.items()
        shapes = definition.get_output_shapes({a: named[name].shape[n] for a, (name, n) in places})
        tensors = (
            named[name] for name, spec in definition.inputs.items() if spec.shape is not None
        )
        device = next((each.device for each in tensors), None)
        dtypes = definition.torch_output_dtypes
        return [
            torch.empty(shape or (), dtype=dtype, device=device)
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]

    def _check_count(self, args: tuple[Any, ...], wanted: int) -> None:
        if len(args) == wanted or self._definition is None:
            return
        raise ValueError(
            f"{self._definition.name!r} got {len(args)} arguments; a value-returning call takes "
            f"{len(self._inputs)}, a destination-passing call {self._total}"
        )


def list_outputs(result: Any, definition: Optional[Definition]) -> list[Any]:
    """Return the outputs of a solution as a list with one entry per output.

    Parameters
    ----------
    result : Any
        A single output, a tuple or list of them, a mapping from output name to output, or None.
    definition : Definition, optional
        Determines the order of a mapping's entries.

    Returns
    -------
    list
        In declaration order if names are given, else in the given order. The length of a tuple or
        list is not checked. Subclasses are read through the base class: an overridden method could
        compute the outputs only now, after the call has been timed.

    Raises
    ------
    ValueError
        If a mapping lacks an output, or has an undeclared one.
    """
    if result is None:
        return []
    kind = type(result)  # isinstance also consults __class__, which an object can fake
    if issubclass(kind, dict):
        return _in_order(result, definition)
    if issubclass(kind, tuple):
        return [*tuple.__iter__(result)]
    return [*list.__iter__(result)] if issubclass(kind, list) else [result]


def _in_order(result: dict[str, Any], definition: Optional[Definition]) -> list[Any]:
    if definition is None:
        return [*dict.values(result)]
    names = list(definition.outputs)
    given = [*dict.keys(result)]
    if any(type(name) is not str for name in given) or {*given} != {*names}:
        raise ValueError(
            f"returned outputs {', '.join(map(str, given)) or 'none'}, "
            f"but {definition.name!r} declares {', '.join(names) or 'none'}"
        )
    return [dict.__getitem__(result, name) for name in names]


def copy_outputs(
    results: Sequence[Any], destinations: Sequence[torch.Tensor], names: Sequence[str]
) -> None:
    """Copy returned outputs into the destination tensors.

    Parameters
    ----------
    results : sequence
        Tensors, or Python numbers for scalars.
    destinations : sequence of torch.Tensor
        The tensors to write to.
    names : sequence of str
        Output names, for messages.

    Raises
    ------
    ValueError
        If number, shape or dtype differ.
    """
    if len(results) != len(destinations):
        raise ValueError(
            f"returned {len(results)} outputs for {len(destinations)} destinations: "
            f"{', '.join(names) or 'none'}"
        )
    for name, result, destination in zip(names, results, destinations, strict=True):
        if isinstance(result, (bool, int, float)):
            destination.fill_(result)
            continue
        if result.shape != destination.shape or result.dtype != destination.dtype:
            raise ValueError(
                f"output {name!r}: returned {list(result.shape)} of {result.dtype}, "
                f"but the destination is {list(destination.shape)} of {destination.dtype}"
            )
        destination.copy_(result)
