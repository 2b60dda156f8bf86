"""The suite for key builders."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Optional, Union

import pytest

from flashinfer_bench.testing.builders.case import default_workload
from flashinfer_bench.testing.record_checks import require_constructible
from flashinfer_bench.testing.records import (
    RecordConformance,
    construct,
    factory_path,
    load_factory,
    require_available,
    spec_of,
)
from flashinfer_bench.testing.verdict import bullets, fail, in_short, require, skip

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from flashinfer_bench.apply import ApplyKey, ApplyKeyBuilder
    from flashinfer_bench.data import Definition, Workload
    from flashinfer_bench.plugins import KeyBuilderSpec

_SEED = 7
_FACTOR = 16
_SEE_KEYS = "see test_a_call_has_the_key_of_its_workload"


@dataclass(frozen=True, kw_only=True)
class KeyBuilderCase:
    """A key builder, and a definition whose calls it makes keys for.

    Parameters
    ----------
    record : KeyBuilderSpec or str
        What the plugin registers, or the path of the factory.
    definition : Definition
        Of an op type that the record names.
    workloads : tuple of Workload
        Recorded calls, each with another key. Default: one with small sizes and, for each variable
        axis, one in which that axis is larger; a definition with constraints may not allow them.
    root : Path, optional
        Where the workloads' files are.
    device : str
        Where the inputs of calls are.
    plugin : str, optional
        The plugin's module, as in its entry point. Default: the top-level package of the factory.
    """

    record: Union[KeyBuilderSpec, str]
    definition: Definition
    workloads: tuple[Workload, ...] = ()
    root: Optional[Path] = None
    device: str = "cpu"
    plugin: Optional[str] = None

    def all_workloads(self) -> list[Workload]:
        """Return the workloads, given or made."""
        if self.workloads:
            return list(self.workloads)
        first = default_workload(self.definition)
        larger = [
            first.model_copy(update={"axes": {**first.axes, axis: size * _FACTOR}, "uuid": axis})
            for axis, size in first.axes.items()
            if axis in self.definition.var_axes_bindings
        ]
        return [first, *larger]

    def inputs(self, workload: Workload) -> list[Any]:
        """Return the inputs of a call, as the workload says."""
        from flashinfer_bench.tensors import generate_inputs

        return generate_inputs(
            self.definition, workload, seed=_SEED, root=self.root, device=self.device
        )


class KeyKit:
    """A case and a key builder for it.

    Parameters
    ----------
    case : KeyBuilderCase
        What the author gives.
    builder : ApplyKeyBuilder
        A new one.
    """

    def __init__(self, case: KeyBuilderCase, builder: ApplyKeyBuilder) -> None:
        self.case = case
        self.builder = builder

    def from_args(self, args: Sequence[Any]) -> ApplyKey:
        """Return the key of a call; skip the test if there is none, which one test reports."""
        return _key(lambda: self.builder.build_from_args(args))

    def from_workload(self, workload: Workload) -> ApplyKey:
        """Return the key of a recorded call; skip the test if there is none."""
        return _key(lambda: self.builder.build_from_workload(workload, self.case.root))


class KeyBuilderConformance(RecordConformance):
    """All that a key builder must keep to.

    Subclass it in a test module, and give it a fixture ``case`` that returns a `KeyBuilderCase`.
    """

    kind: ClassVar[str] = "key_builder"
    case_type: ClassVar[type] = KeyBuilderCase

    @pytest.fixture
    def kit(self, given: KeyBuilderCase, request: pytest.FixtureRequest) -> KeyKit:
        """Give the case and a new key builder; skip the test if there is none here."""
        require_available(given, request)
        return KeyKit(given, construct(given, given.definition))

    def test_the_factory_takes_what_it_is_given(
        self, given: KeyBuilderCase, request: pytest.FixtureRequest
    ) -> None:
        """The host constructs key builders itself, with the definition."""
        load_factory(given)
        require_available(given, request)
        require_constructible(factory_path(given), given.definition)

    def test_the_record_names_the_op_type(self, given: KeyBuilderCase) -> None:
        """The record is for the op type of the case's definition."""
        record: Any = spec_of(given)
        known = [op_type.lower() for op_type in record.op_types]
        require(
            given.definition.op_type.lower() in known,
            f"the record is for {', '.join(record.op_types)}, and the case's definition is of op "
            f"type {given.definition.op_type!r}",
            why="key builders are chosen by the op type",
            fix="name it in the record's op_types",
        )

    def test_a_call_has_the_key_of_its_workload(self, kit: KeyKit) -> None:
        """What was recorded is found again."""
        from flashinfer_bench.apply import ApplyKey

        for workload in kit.case.all_workloads():
            called, recorded = _both(kit, workload)
            require(
                isinstance(called, ApplyKey) and isinstance(recorded, ApplyKey),
                f"the keys are a {type(called).__name__} and a {type(recorded).__name__}",
                why="tables are made of ApplyKey",
                fix="return ApplyKey(axes, feats)",
            )
            require(
                called == recorded,
                f"workload {workload.uuid!r}: the call has\n    {called}\n  and the workload\n"
                f"    {recorded}",
                why="the table is made from workloads and asked by calls: nothing would be found",
                fix="take axes in the same order (axes_of, axes_in), and features of the same "
                "type and rounding, in both",
            )

    def test_what_it_says_of_axes_only_is_so(self, kit: KeyKit) -> None:
        """Where `axes_only` is true, keys are what a compiled look-up takes them to be."""
        from flashinfer_bench.apply import ApplyKey

        for workload in kit.case.all_workloads():
            args = kit.case.inputs(workload)
            key, places = kit.from_args(args), kit.builder.axis_places
            plain = ApplyKey(tuple((axis, args[i].shape[dim]) for axis, i, dim in places))
            require(
                key == plain or not kit.builder.axes_only,
                f"axes_only is true, and the axes alone give\n    {plain}\n  while "
                f"build_from_args gives\n    {key}",
                why="calls are looked up by the sizes at axis_places, without build_from_args",
                fix="do not override axes_only; a builder that makes keys itself inherits the "
                "right answer",
            )

    def test_equal_calls_have_equal_keys(self, kit: KeyKit) -> None:
        """Keys are equal and hash alike, whatever objects they were made from."""
        workload = kit.case.all_workloads()[0]
        first, second = kit.case.inputs(workload), kit.case.inputs(workload)
        one, other = kit.from_args(first), kit.from_args(second)
        require(
            one == other,
            f"two calls of the same workload have the keys\n    {one}\n    {other}",
            why="no entry of the table would ever be found again",
            fix="make the key from shapes and values, not from objects; a NaN equals nothing",
        )
        try:
            same = hash(one) == hash(other)
        except TypeError as error:
            fail(
                f"the key {one} cannot be hashed: {error}",
                why="it is looked up in a dictionary",
                fix="use tuples, strings and numbers; no lists, no tensors",
            )
        require(
            same,
            f"two equal keys hash differently: {one}",
            why="it is looked up in a dictionary",
            fix="do not override __hash__",
        )

    def test_a_key_survives_json(self, kit: KeyKit) -> None:
        """It can be stored with a table, and read again."""
        from flashinfer_bench.apply import ApplyKey

        key = kit.from_args(kit.case.inputs(kit.case.all_workloads()[0]))
        try:
            copy = ApplyKey.from_json(key.to_json())
        except Exception as error:  # noqa: BLE001 - features may be of any type
            fail(
                f"the key {key} cannot be written as JSON and read: {in_short(error)}",
                why="tables are kept on disk",
                fix="let features be str, int, float, bool or None; round floats, and use no NaN",
            )
        require(
            copy == key and repr(copy) == repr(key),
            f"written as JSON and read, the key\n    {key}\n  is\n    {copy}",
            why="tables are kept on disk: nothing would be found in one that was read",
            fix="let features be str, int, float, bool or None, and axes int",
        )

    def test_other_workloads_have_other_keys(self, kit: KeyKit) -> None:
        """Each variable axis that the inputs show makes a difference."""
        workloads = kit.case.all_workloads()
        if len(workloads) < 2:
            skip("the definition has no variable axis, and the case no second workload")
        found: dict[str, Workload] = {}
        same = []
        for workload in workloads:
            key = repr(kit.from_workload(workload))
            if key in found:
                same.append(f"{found[key].axes} and {workload.axes}: {key}")
            found[key] = workload
        require(
            not same,
            "different workloads have one key:\n" + bullets(same),
            why="the solution that was best for one would be used for the other",
            fix="put every axis into the key that the speed depends on. If two sizes are meant to "
            "share a solution, give the case workloads that differ",
        )

    def test_it_reads_no_data_unless_it_says_so(self, kit: KeyKit) -> None:
        """A key is made from tensors that have a shape, and no values."""
        if kit.builder.reads_data:
            skip("the builder declares that it reads the values of tensors (reads_data)")
        args = _without_values(kit.case.inputs(kit.case.all_workloads()[0]))
        operations: list[str] = []
        try:
            with _recorded(operations):
                kit.builder.build_from_args(args)
        except Exception as error:  # noqa: BLE001 - what fails is a read of what is not there
            operations.append(in_short(error))
        require(
            not operations,
            "making a key did this with the tensors of a call:\n" + bullets(operations),
            why="reading a value waits for the device, at every call; a torch operation costs more "
            "than the whole look-up may",
            fix="use shapes, strides and scalars only; or set reads_data = True on the class",
        )

    def test_it_takes_the_same_work_whatever_the_size(self, kit: KeyKit) -> None:
        """As many lines of Python run for a large call as for a small one."""
        if kit.builder.reads_data:
            skip("the builder declares that it reads the values of tensors (reads_data)")
        workloads = kit.case.all_workloads()
        lines = []
        for workload in workloads:
            args = kit.case.inputs(workload)
            kit.from_args(args)  # whatever it does once is done
            lines.append(_lines_of(partial(kit.from_args, args)))
        require(
            max(lines) <= 1.5 * min(lines) + 10,
            "lines of Python that ran: "
            + ", ".join(f"{n} for {w.axes}" for n, w in zip(lines, workloads, strict=True)),
            why="it runs at every call of the kernel, and the large ones are the ones that count",
            fix="loop over the inputs of the definition, never over the elements of a tensor",
        )

    def test_by_name_as_by_position(self, kit: KeyKit) -> None:
        """`build_from_runtime` gives the same key for arguments by name."""
        args = kit.case.inputs(kit.case.all_workloads()[0])
        named = dict(zip(kit.case.definition.inputs, args, strict=True))
        backwards = dict(reversed(list(named.items())))
        by_position = kit.from_args(args)
        try:
            by_name: object = kit.builder.build_from_runtime(backwards)
        except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
            by_name = error
        require(
            by_name == by_position,
            f"by name the key is {by_name!r}, by position {by_position}",
            why="calls come in both ways",
            fix="leave build_from_runtime as it is, or put arguments into the definition's order",
        )


def _key(make: Callable[[], object]) -> ApplyKey:
    from flashinfer_bench.apply import ApplyKey

    try:
        made = make()
    except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
        skip(f"making a key raised {in_short(error)}: {_SEE_KEYS}")
    if not isinstance(made, ApplyKey):
        skip(f"a key is a {type(made).__name__}: {_SEE_KEYS}")
    return made


def _both(kit: KeyKit, workload: Workload) -> tuple[object, object]:
    """Return the key of a call and that of its workload."""
    args, method = kit.case.inputs(workload), "build_from_args"
    try:
        called = kit.builder.build_from_args(args)
        method = "build_from_workload"
        return called, kit.builder.build_from_workload(workload, kit.case.root)
    except Exception as error:  # noqa: BLE001 - a plugin's code may raise anything
        fail(
            f"{method} raised {in_short(error)}",
            why="calls with such arguments always miss",
            fix="take the definition's inputs in declaration order: tensors, and Python scalars",
        )


def _without_values(args: Sequence[Any]) -> list[Any]:
    """Return tensors of the same shapes that have no data: reading one is an error."""
    import torch

    return [each.to("meta") if isinstance(each, torch.Tensor) else each for each in args]


def _recorded(operations: list[str]) -> Any:
    """Return a context in which the names of torch operations are noted."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            operations.append(f"the torch operation {func}")
            return func(*args, **(kwargs or {}))

    return Recording()  # type: ignore[no-untyped-call]


def _lines_of(run: Callable[[], object]) -> int:
    """Return how many lines of Python run."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count
