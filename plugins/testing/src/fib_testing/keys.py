"""The suite for key builders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Optional

import pytest

from fib_testing.records import (
    RecordConformance,
    in_short,
    must_work,
    record_of,
    require,
    require_none,
)
from fib_testing.samples import DefinitionCase, default_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flashinfer_bench.data import Workload

_SEED = 7
_FACTOR = 16
_SEE_KEYS = "test_a_call_has_the_key_of_its_workload"


@dataclass(frozen=True, kw_only=True)
class KeyBuilderCase(DefinitionCase):
    """A key builder, and a definition whose calls it creates keys for.

    Parameters
    ----------
    record : KeyBuilderSpec or str
        The record that the plugin registers, or the path of the factory.
    definition : Definition
        A definition of an op type in the record.
    workloads : tuple of Workload
        Recorded calls with different keys. Default: one with small sizes and, for each variable
        axis, one in which that axis is larger; a definition with constraints may not allow them.
    root : Path, optional
        Folder of the workloads' files.
    device : str
        Device of the inputs of calls.
    plugin : str, optional
        The plugin's module, as in its entry point. Default: the top-level package of the factory.
    """

    workloads: tuple[Workload, ...] = ()
    device: str = "cpu"

    def all_workloads(self) -> list[Workload]:
        """Return the workloads of the case, or defaults."""
        if self.workloads:
            return list(self.workloads)
        first = default_workload(self.definition)
        larger = [
            first.model_copy(update={"axes": {**first.axes, axis: size * _FACTOR}, "uuid": axis})
            for axis, size in first.axes.items()
            if axis in self.definition.var_axes_bindings
        ]
        return [first, *larger]

    def inputs(self, workload: Optional[Workload] = None) -> list[Any]:
        """Return the inputs of a call from a workload (default: the first)."""
        return self.generate(workload or self.all_workloads()[0], _SEED, self.device)


class KeyKit:
    """A case and a new key builder; a key that cannot be created skips the test."""

    def __init__(self, case: KeyBuilderCase, builder: Any) -> None:
        self.case = case
        self.builder = builder

    def from_args(self, args: Sequence[Any]) -> Any:
        """Return the key of a call."""
        return self._key(lambda: self.builder.build_from_args(args))

    def from_workload(self, workload: Workload) -> Any:
        """Return the key of a recorded call."""
        return self._key(lambda: self.builder.build_from_workload(workload, self.case.root))

    def _key(self, make: Callable[[], Any]) -> Any:
        from flashinfer_bench.apply import ApplyKey

        with must_work("making a key", see=_SEE_KEYS):
            made = make()
        if not isinstance(made, ApplyKey):
            pytest.skip(f"a key is a {type(made).__name__}: see {_SEE_KEYS}")
        return made


class KeyBuilderConformance(RecordConformance):
    """The contract of key builders.

    Subclass it in a test module, and give it a fixture ``case`` that returns a `KeyBuilderCase`.
    """

    kind: ClassVar[str] = "key_builder"
    case_type: ClassVar[type] = KeyBuilderCase

    def arguments(self, given: KeyBuilderCase) -> tuple[Any, ...]:
        """Return the definition, with which the host constructs a key builder."""
        return (given.definition,)

    @pytest.fixture
    def kit(self, given: KeyBuilderCase, made: Any) -> KeyKit:
        """Return the kit of the case; skip the test if the key builder is unavailable here."""
        return KeyKit(given, made)

    def test_the_record_names_the_op_type(self, given: KeyBuilderCase) -> None:
        """The record has the op type of the case's definition.

        Why it matters: key builders are chosen by op type.

        To do: add it to the record's op_types.
        """
        op_types, wanted = record_of(given).op_types, given.definition.op_type
        require(
            wanted.lower() in [op_type.lower() for op_type in op_types],
            f"the record is for {', '.join(op_types)}; the case's definition is of op type "
            f"{wanted!r}",
        )

    def test_a_call_has_the_key_of_its_workload(self, kit: KeyKit) -> None:
        """A call has the same key as its recorded workload.

        Why it matters: the table is built from workloads and looked up by calls, so that nothing
        would be found.

        To do: return ApplyKey(axes, feats), for the definition's inputs in declaration order. Use
        the same order of axes (axes_of, axes_in), and features of the same type and rounding, in
        both.
        """
        from flashinfer_bench.apply import ApplyKey

        for workload in kit.case.all_workloads():
            args = kit.case.inputs(workload)
            with must_work("build_from_args"):
                called = kit.builder.build_from_args(args)
            with must_work("build_from_workload"):
                recorded = kit.builder.build_from_workload(workload, kit.case.root)
            require(
                isinstance(called, ApplyKey) and isinstance(recorded, ApplyKey),
                f"the keys are a {type(called).__name__} and a {type(recorded).__name__}",
            )
            require(
                called == recorded,
                f"workload {workload.uuid!r}: the call has\n    {called}\n  and the workload\n"
                f"    {recorded}",
            )

    def test_what_it_says_of_axes_only_is_so(self, kit: KeyKit) -> None:
        """If `axes_only` is true, keys consist of the axes alone.

        Why it matters: calls are looked up by the sizes at axis_places, without build_from_args.

        To do: do not override axes_only; a builder that creates keys itself inherits the right
        value.
        """
        from flashinfer_bench.apply import ApplyKey

        for workload in kit.case.all_workloads():
            args = kit.case.inputs(workload)
            key, places = kit.from_args(args), kit.builder.axis_places
            plain = ApplyKey(tuple((axis, args[i].shape[dim]) for axis, i, dim in places))
            require(
                key == plain or not kit.builder.axes_only,
                f"axes_only is true, but the axes alone give\n    {plain}\n  and "
                f"build_from_args gives\n    {key}",
            )

    def test_equal_calls_have_equal_keys(self, kit: KeyKit) -> None:
        """Equal calls have equal keys: for other objects, by position or name, and via JSON.

        Why it matters: keys are looked up in dictionaries, and tables are stored on disk, so that
        entries would not be found.

        To do: create the key from shapes and values, not from objects: features are str, int,
        float, bool or None, and axes int; round floats, and avoid NaN, which equals nothing. Do
        not override build_from_runtime, or put arguments in the definition's order.
        """
        from flashinfer_bench.apply import ApplyKey

        args = kit.case.inputs()
        named = dict(zip(kit.case.definition.inputs, args, strict=True))
        key = kit.from_args(args)
        others = {"created by another call of the same workload": kit.from_args(kit.case.inputs())}
        with must_work("build_from_runtime"):
            backwards = dict(reversed(list(named.items())))
            others["created from arguments by name"] = kit.builder.build_from_runtime(backwards)
        with must_work(f"writing the key {key} as JSON and reading it"):
            others["written as JSON and read"] = copy = ApplyKey.from_json(key.to_json())
        with must_work(f"hashing the key {key}"):
            found = [
                f"{what}, it is {other}"
                for what, other in others.items()
                if other != key or hash(other) != hash(key)
            ]
        found += [] if repr(copy) == repr(key) else [f"written as JSON and read, it is {copy}"]
        require_none(found, f"the key {key} is not always the same")

    def test_other_workloads_have_other_keys(self, kit: KeyKit) -> None:
        """Workloads that differ in a variable axis of the inputs have different keys.

        Why it matters: the best solution for one would be used for the other.

        To do: include every axis that affects speed in the key. If two sizes are meant to share a
        solution, give the case workloads that differ more.
        """
        workloads = kit.case.all_workloads()
        if len(workloads) < 2:
            pytest.skip("the definition has no variable axis and the case no second workload")
        found: dict[str, Workload] = {}
        same = []
        for workload in workloads:
            key = repr(kit.from_workload(workload))
            if key in found:
                same.append(f"{found[key].axes} and {workload.axes}: {key}")
            found[key] = workload
        require_none(same, "different workloads have the same key")

    def test_it_reads_no_data_unless_it_says_so(self, kit: KeyKit) -> None:
        """Keys are created without values of tensors and without torch operations.

        Why it matters: reading a value waits for the device at every call, and a torch operation
        takes longer than the whole look-up should.

        To do: use only shapes, strides and scalars, or set reads_data = True on the class.
        """
        if kit.builder.reads_data:
            pytest.skip("the builder declares that it reads the values of tensors (reads_data)")
        # Tensors without data: reading a value of one is an error.
        args = [each.to("meta") if hasattr(each, "to") else each for each in kit.case.inputs()]
        operations: list[str] = []
        try:
            with _recording(operations):
                kit.builder.build_from_args(args)
        except Exception as error:  # noqa: BLE001 - what fails is a read of what is not there
            operations.append(in_short(error))
        require_none(operations, "creating a key used the tensors of a call")


def _recording(operations: list[str]) -> Any:
    """Return a context that records the names of torch operations."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            operations.append(f"the torch operation {func}")
            return func(*args, **(kwargs or {}))

    return Recording()  # type: ignore[no-untyped-call]
