"""The suite for key builders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Optional

import pytest

from fib_testing.records import (
    RecordCase,
    RecordConformance,
    in_short,
    must_work,
    needed,
    record_of,
    require,
    require_none,
)
from fib_testing.samples import default_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from flashinfer_bench.data import Definition, Workload

_SEED = 7
_FACTOR = 16
_SEE_KEYS = "test_a_call_has_the_key_of_its_workload"


@dataclass(frozen=True, kw_only=True)
class KeyBuilderCase(RecordCase):
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

    definition: Definition
    workloads: tuple[Workload, ...] = ()
    root: Optional[Path] = None
    device: str = "cpu"

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

    def inputs(self, workload: Optional[Workload] = None) -> list[Any]:
        """Return the inputs of a call, as a workload (default: the first) says."""
        from flashinfer_bench.tensors import generate_inputs

        chosen = workload or self.all_workloads()[0]
        return generate_inputs(
            self.definition, chosen, seed=_SEED, root=self.root, device=self.device
        )


class KeyKit:
    """A case and a new key builder; a key that cannot be made skips the test."""

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

        with needed("making a key", _SEE_KEYS):
            made = make()
        if not isinstance(made, ApplyKey):
            pytest.skip(f"a key is a {type(made).__name__}: see {_SEE_KEYS}")
        return made


class KeyBuilderConformance(RecordConformance):
    """All that a key builder must keep to.

    Subclass it in a test module, and give it a fixture ``case`` that returns a `KeyBuilderCase`.
    """

    kind: ClassVar[str] = "key_builder"
    case_type: ClassVar[type] = KeyBuilderCase

    def arguments(self, given: KeyBuilderCase) -> tuple[Any, ...]:
        """Return the definition, with which the host makes a key builder."""
        return (given.definition,)

    @pytest.fixture
    def kit(self, given: KeyBuilderCase, made: Any) -> KeyKit:
        """Give the case and a new key builder; skip the test if there is none here."""
        return KeyKit(given, made)

    def test_the_record_names_the_op_type(self, given: KeyBuilderCase) -> None:
        """The record is for the op type of the case's definition.

        Why it matters: key builders are chosen by the op type.

        To do: name it in the record's op_types.
        """
        op_types, wanted = record_of(given).op_types, given.definition.op_type
        require(
            wanted.lower() in [op_type.lower() for op_type in op_types],
            f"the record is for {', '.join(op_types)}, and the case's definition is of op type "
            f"{wanted!r}",
        )

    def test_a_call_has_the_key_of_its_workload(self, kit: KeyKit) -> None:
        """What was recorded is found again.

        Why it matters: the table is made from workloads and asked by calls: nothing would be found.

        To do: return ApplyKey(axes, feats), for the definition's inputs in declaration order. Take
        axes in the same order (axes_of, axes_in), and features of the same type and rounding, in
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
        """Where `axes_only` is true, keys are what a compiled look-up takes them to be.

        Why it matters: calls are looked up by the sizes at axis_places, without build_from_args.

        To do: do not override axes_only; a builder that makes keys itself inherits the right
        answer.
        """
        from flashinfer_bench.apply import ApplyKey

        for workload in kit.case.all_workloads():
            args = kit.case.inputs(workload)
            key, places = kit.from_args(args), kit.builder.axis_places
            plain = ApplyKey(tuple((axis, args[i].shape[dim]) for axis, i, dim in places))
            require(
                key == plain or not kit.builder.axes_only,
                f"axes_only is true, and the axes alone give\n    {plain}\n  while "
                f"build_from_args gives\n    {key}",
            )

    def test_equal_calls_have_equal_keys(self, kit: KeyKit) -> None:
        """Whatever objects they are made from, by position or by name, and read from JSON again.

        Why it matters: a key is looked up in a dictionary, and tables are kept on disk: no entry
        would be found again.

        To do: make the key from shapes and values, not from objects: features are str, int, float,
        bool or None, and axes int; round floats, and use no NaN, which equals nothing. Leave
        build_from_runtime as it is, or put arguments into the definition's order.
        """
        from flashinfer_bench.apply import ApplyKey

        args = kit.case.inputs()
        named = dict(zip(kit.case.definition.inputs, args, strict=True))
        key = kit.from_args(args)
        others = {"made from another call of the same workload": kit.from_args(kit.case.inputs())}
        with must_work("build_from_runtime"):
            backwards = dict(reversed(list(named.items())))
            others["made from arguments by name"] = kit.builder.build_from_runtime(backwards)
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
        """Each variable axis that the inputs show makes a difference.

        Why it matters: the solution that was best for one would be used for the other.

        To do: put every axis into the key that the speed depends on. If two sizes are meant to
        share a solution, give the case workloads that differ.
        """
        workloads = kit.case.all_workloads()
        if len(workloads) < 2:
            pytest.skip("the definition has no variable axis, and the case no second workload")
        found: dict[str, Workload] = {}
        same = []
        for workload in workloads:
            key = repr(kit.from_workload(workload))
            if key in found:
                same.append(f"{found[key].axes} and {workload.axes}: {key}")
            found[key] = workload
        require_none(same, "different workloads have one key")

    def test_it_reads_no_data_unless_it_says_so(self, kit: KeyKit) -> None:
        """A key is made from tensors that have a shape, and no values.

        Why it matters: reading a value waits for the device, at every call; a torch operation costs
        more than the whole look-up may.

        To do: use shapes, strides and scalars only; or set reads_data = True on the class.
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
        require_none(operations, "making a key did this with the tensors of a call")


def _recording(operations: list[str]) -> Any:
    """Return a context in which the names of torch operations are noted."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            operations.append(f"the torch operation {func}")
            return func(*args, **(kwargs or {}))

    return Recording()  # type: ignore[no-untyped-call]
