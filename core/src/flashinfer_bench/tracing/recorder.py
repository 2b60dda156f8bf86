"""Turns the calls of one definition into entries.

Tracing must not slow down the caller noticeably. The function that handles calls from one call site
is therefore generated at run time, and contains everything that can be decided in advance: which
sizes form the key, and where they are in the arguments of that call site. A repeated call costs
reading these sizes and one look-up; only new calls are examined in full.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.data.constraints import parse_constraint
from flashinfer_bench.errors import DataError
from flashinfer_bench.routing.binding import compile_source, match, place_of, same_value
from flashinfer_bench.routing.patch_manager import UnroutableError
from flashinfer_bench.routing.patch_points import Note, PatchPoint, opaque
from flashinfer_bench.tensors.dtypes import Operand, first_places, operands_of, span_of
from flashinfer_bench.tracing.policies import (
    FastPath,
    OnlinePolicy,
    WorkloadEntry,
    is_number,
    stays_kept,
)
from flashinfer_bench.tracing.shutdown import held_back

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from flashinfer_bench.data import Definition
    from flashinfer_bench.tracing.config import TracingConfig
    from flashinfer_bench.tracing.runtime import TracingRuntime

    Args = tuple[Any, ...]
    Kwargs = Optional[Mapping[str, Any]]
    Order = Callable[[Args, Kwargs], Optional[Sequence[Any]]]
    """Returns all inputs, in declaration order; None if the call does not match the definition."""

_logger = logging.getLogger(__name__)


class Layout:
    """The inputs of a definition.

    Parameters
    ----------
    definition : Definition
        The definition.

    Attributes
    ----------
    inputs : tuple of Operand
        The inputs, and their `names`.
    places : dict of str to (int, int)
        First occurrence of each variable axis: position of the input, and dimension.
    constraints : list of Constraint
        The constraints of the definition.

    Raises
    ------
    CapabilityError
        If torch is too old for one of the dtypes.
    """

    def __init__(self, definition: Definition) -> None:
        self._constants = definition.const_axes
        self.constraints = [parse_constraint(text) for text in definition.constraints]
        self.name = definition.name
        self.inputs = operands_of(definition.inputs, self._constants)
        self.names = tuple(each.name for each in self.inputs)
        found = first_places(self.inputs)
        self.places = {axis: found[axis] for axis in definition.var_axes if axis in found}

    def size_of(self, axis: str) -> str:
        """Return Python for the size of an axis, with ``a0``, ``a1``, … for the inputs."""
        position, dimension = self.places[axis]
        return f"a{position}.shape[{dimension}]"

    def tensors(self, dtypes: Optional[tuple[str, ...]] = None) -> tuple[str, ...]:
        """Return the names of the tensor inputs, optionally only of the given torch dtypes."""
        return tuple(
            each.name
            for each in self.inputs
            if each.shape is not None
            and (dtypes is None or str(each.dtype).removeprefix("torch.") in dtypes)
        )

    def read(self, args: Optional[Sequence[Any]]) -> tuple[dict[str, int], dict[str, Any]]:
        """Check the inputs of a call against the definition.

        Parameters
        ----------
        args : sequence, optional
            All inputs, in declaration order; None if they could not be determined.

        Returns
        -------
        tuple of (dict, dict)
            Value of each variable axis, in declaration order; and of each scalar, by name. A scalar
            on a GPU is still a tensor there.

        Raises
        ------
        UnroutableError
            If it does not match the definition.
        """
        if args is None:
            raise UnroutableError("arguments")
        if len(args) != len(self.inputs):
            raise UnroutableError("number of arguments")
        axes: dict[str, int] = {}
        scalars: dict[str, Any] = {}
        for each, value in zip(self.inputs, args, strict=True):
            if each.shape is None:
                scalars[each.name] = scalar_of(value, each.scalar)
            else:
                _read_tensor(each, value, axes)
        ordered = {axis: axes[axis] for axis in self.places}
        sizes = {**self._constants, **ordered}
        for constraint in self.constraints:
            if constraint.decidable(sizes) and not constraint.evaluate(sizes):
                raise UnroutableError("constraint")
        return ordered, scalars


def _read_tensor(each: Operand, value: Any, axes: dict[str, int]) -> None:
    import torch

    assert each.shape is not None
    if not isinstance(value, torch.Tensor):
        raise UnroutableError("not a tensor")
    # Reject what cannot be copied before a policy counts it as the call of that size: the next call
    # may be a real one.
    if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise UnroutableError("tensor subclass")  # fake, distributed and packed tensors
    if value.layout is not torch.strided:
        raise UnroutableError("not dense")
    if value.is_meta:
        raise UnroutableError("no data")
    if value.dtype != each.dtype:
        raise UnroutableError("dtype")
    if value.dim() != len(each.shape):
        raise UnroutableError("rank")
    for size, wanted in zip(value.shape, each.shape, strict=True):
        if isinstance(wanted, str):
            if axes.setdefault(wanted, int(size)) != size:
                raise UnroutableError("axes disagree")
        elif size != wanted:
            raise UnroutableError("constant axis")


def scalar_of(value: Any, kind: type) -> Any:
    """Return a scalar input as a Python number; a scalar on a GPU is returned unchanged.

    Raises
    ------
    UnroutableError
        If it is not a number of that kind.
    """
    if getattr(value, "is_cuda", False) is True and value.numel() == 1:
        return value
    item = getattr(value, "item", None)  # NumPy scalars have it, too
    try:
        number = value if item is None else item()
        fits = isinstance(number, (bool, int, float))
        converted = kind(number) if fits else None
    except (TypeError, ValueError, RuntimeError, OverflowError):
        converted = None
    # A NaN is not equal to itself.
    if converted is None or not (converted == number or number != number):
        raise UnroutableError("scalar")
    return converted


# ------------------------------------------------------------------------------------ calls


@dataclass
class Counters:
    """Counts what became of a definition's calls; defined in `docs/reference/tracing.md`."""

    duplicates: int = 0  # added to without a lock
    recorded: int = 0
    too_large: int = 0
    errors: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


def record_of(parts: Sequence[Counters]) -> dict[str, Any]:
    """Return the summed counts of several definitions as plain data."""
    names = ("recorded", "duplicates", "too_large", "errors")
    counts = {name: sum(getattr(each, name) for each in parts) for name in names}
    rejected = sum((each.rejected for each in parts), Counter[str]())
    calls = sum(counts.values()) + rejected.total()
    return {"calls": calls, **counts, "rejected": dict(rejected)}


class Recorder:
    """Records the calls of one definition.

    Parameters
    ----------
    owner : TracingRuntime
        Holds the state that all recorders share.
    definition : Definition
        The definition.
    config : TracingConfig
        Settings of the definition.
    """

    def __init__(
        self, owner: TracingRuntime, definition: Definition, config: TracingConfig
    ) -> None:
        self.definition = definition
        self.layout = Layout(definition)
        self.counters = Counters()
        self.policy = owner.policies.make_filter_policy(config)
        self.fast_path: Optional[FastPath] = None
        self._owner = owner
        self._pick = owner.policies.make_picker(config, self.layout)
        self._kinds = {each.name: each.scalar for each in self.layout.inputs if each.shape is None}
        self._told = False
        self._settles = stays_kept(self.policy)
        if hasattr(self.policy, "begin"):  # missing in user policies without a base class
            self.policy.begin(self.layout)
        if isinstance(self.policy, OnlinePolicy):
            self.policy.bound(owner.limits.max_keys)
            self.fast_path = self.policy.fast_path(self.layout)

    def note(self, point: Optional[PatchPoint]) -> Note:
        """Return the function that records calls from `point`, or calls in the definition's form.

        Parameters
        ----------
        point : PatchPoint, optional
            Where calls come from. If None, or without a signature, arguments are the definition's.

        Raises
        ------
        ConfigError
            If no call from there can match the definition; the message says why.
        """
        signature = None if point is None else point.signature
        names = self.layout.names
        namespace: dict[str, Any] = {"counters": self.counters, "record": self.record}
        lines: list[str] = []
        if signature is None:
            namespace["order"] = partial(_plain_order, self.definition)
            where = [f"(kwargs[{n!r}] if kwargs else args[{i}])" for i, n in enumerate(names)]
        else:
            binding = match(signature, names, list(self.definition.outputs))
            where = [place_of(signature, name) for name in binding.inputs]
            others = [place_of(signature, name) for name in binding.rest]
            for index, name in enumerate(binding.extras):
                others.append(f"not same({place_of(signature, name)}, default{index})")
                namespace[f"default{index}"] = signature.parameters[name].default
            namespace["same"] = same_value
            refused = f"None if {' or '.join(others)} else " if others else ""
            lines += [
                "    def order(args, kwargs):",
                f"        return {refused}[{', '.join(where)}]",
            ]
        lines.append("    def note(args, kwargs):")
        path = self.fast_path
        if path is not None:
            namespace |= path.namespace
            lines += [
                "        try:",
                *(f"            a{each} = {where[each]}" for each in sorted(path.positions)),
                f"            if {path.condition}:",
                "                counters.duplicates += 1",
                "                return",
                "        except Exception:  # examined below",
                "            pass",
            ]
        lines += ["        record(args, kwargs, order)", "    return note"]
        source = "\n".join([f"def make({', '.join(namespace)}):", *lines]) + "\n"
        note: Note = compile_source(source)(**namespace)
        return opaque(note)

    def record(self, args: Args, kwargs: Kwargs, order: Order) -> None:
        """Process a call that the fast path has not recognised. Never raises."""
        owner = self._owner
        with held_back(), owner.lock:
            if owner.busy:  # re-entered: a copy or a user's policy called a traced function
                return
            owner.busy = True
            try:
                self._record(order(args, kwargs))
            except Exception as error:  # noqa: BLE001 - no call may fail by being recorded
                self.fail(error)
            finally:
                owner.busy = False
        owner.relieve()

    def fail(self, error: Exception) -> None:
        """Count a call that does not match the definition, or could not be recorded.

        The first call that could not be recorded is logged.
        """
        if isinstance(error, UnroutableError):
            self.counters.rejected[error.reason] += 1
            return
        self.counters.errors += 1
        if not self._told:
            self._told = True
            message = "a call of '%s' was not recorded; reported once"
            _logger.warning(message, self.layout.name, exc_info=error)

    def _record(self, args: Optional[Sequence[Any]]) -> None:
        owner, policy = self._owner, self.policy
        axes, scalars = self.layout.read(args)
        inputs = dict(zip(self.layout.names, args or (), strict=True))
        if isinstance(policy, OnlinePolicy) and not policy.admit(axes, inputs):
            self.counters.duplicates += 1
            return
        picked = {name: inputs[name] for name in self._pick(inputs)}
        if sum(each.nbytes for each in picked.values()) > owner.limits.max_bytes:
            self.counters.too_large += 1
            return
        values, deferred = {**picked, **scalars}, owner.deferring()
        if not deferred:
            values |= self._copies(values)
        order = next(owner.orders)
        entry = WorkloadEntry(self.layout.name, axes, values, order, is_deferred=deferred)
        self.counters.recorded += 1
        displaced = None
        if isinstance(policy, OnlinePolicy):
            displaced = policy.keep(entry)
        else:
            policy.submit(entry)
        owner.took(entry, displaced)
        if self._settles and not deferred:
            owner.write_soon()

    def _copies(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return copies of the program's tensors, and numbers for scalars on a GPU."""
        copies: dict[str, Any] = {}
        for name, value in values.items():
            if not is_number(value):
                copied = copy_of(value)
                kind = self._kinds.get(name)
                copies[name] = copied if kind is None else scalar_of(copied, kind)
        return copies

    def settled(self) -> list[WorkloadEntry]:
        """Return the kept entries if they are final, otherwise an empty list."""
        found: list[WorkloadEntry] = getattr(self.policy, "entries", []) if self._settles else []
        return found

    def drain(self) -> list[WorkloadEntry]:
        """Return the kept entries; invalid or unavailable ones are counted as failures."""
        try:
            entries: list[Any] = list(self.policy.drain())
        except Exception as error:  # noqa: BLE001 - a user's policy
            self.fail(error)
            return []
        name = self.layout.name
        sound = [
            each
            for each in entries
            if isinstance(each, WorkloadEntry) and each.def_name == name and type(each.order) is int
        ]
        for _ in range(len(entries) - len(sound)):  # they must not affect other entries
            self.fail(ValueError("the policy kept an entry that was not submitted to it"))
        return sound

    def settle(self, entry: WorkloadEntry) -> bool:
        """Copy the tensors of a deferred entry now; return whether that succeeded."""
        try:
            entry.cuda_graph_snapshot = self._copies(entry.inputs_to_dump)
        except Exception as error:  # noqa: BLE001 - for example, its memory is gone
            self.fail(error)
            return False
        return True

    def finish(self, entry: WorkloadEntry) -> bool:
        """Make a deferred entry writable, from the last snapshot or from a new copy."""
        if entry.is_deferred:
            if entry.cuda_graph_snapshot is None and not self.settle(entry):
                return False
            entry.inputs_to_dump, entry.is_deferred = entry.values(), False
        return True


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy of `tensor` on the CPU that shares no memory with it.

    Parameters
    ----------
    tensor : torch.Tensor
        On any device, with any strides. On a GPU this waits for the current stream.

    Raises
    ------
    RuntimeError
        If its memory has been freed, as sharded training does with ``resize_(0)``: reading it would
        crash the process.
    """
    import torch

    item = tensor.element_size()
    end = tensor.storage_offset() * item + span_of(tensor.shape, tensor.stride(), item)
    if tensor.numel() and end > tensor.untyped_storage().nbytes():
        raise RuntimeError("the memory of a tensor has been freed")
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


# ------------------------------------------------------------------------------------ notes


def _plain_order(definition: Definition, args: Args, kwargs: Kwargs) -> Optional[Sequence[Any]]:
    """Order arguments that are given as inputs, or inputs and outputs."""
    try:
        return definition.merge_kwargs_to_args(args, kwargs or {})[: len(definition.inputs)]
    except DataError:
        return None
