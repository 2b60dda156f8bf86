"""What the author of a builder gives: one correct solution, and what it is to be checked with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional, Union

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from flashinfer_bench.data import CompileOptions, Definition, Solution, Workload
    from flashinfer_bench.plugins import BuilderSpec

_SIZES = (3, 5, 7, 11, 13, 17)
_DEFINE = "-DFIB_CONFORMANCE_OTHER=1"
_SEED = 20250705
_SCALARS: dict[type, Any] = {bool: True, int: 3, float: 0.5}


@dataclass(frozen=True, kw_only=True)
class FailingSolution:
    """A solution that must not build.

    Parameters
    ----------
    solution : Solution
        What is wrong with it is up to the author of the builder.
    expect : str
        A part of the error's message, hint or log: what a user needs to find the mistake.
    """

    solution: Solution
    expect: str


@dataclass(frozen=True, kw_only=True)
class BuilderCase:
    """A builder, a correct solution for it, and what goes with them.

    Broken variants of the solution are derived from it.

    Parameters
    ----------
    record : BuilderSpec or str
        What the plugin registers. A factory's path, ``"package.module:Name"``, does where there
        is no record yet; the checks of the record are then skipped.
    definition : Definition
        What the solution computes. `sample_definition` is a small one.
    solution : Solution
        A correct one, which needs no more than a second to run.
    twin : Solution, optional
        One with the same file names and the same definition that computes something else.
    other_style : Solution, optional
        A correct one of the other calling convention, for a builder that knows both.
    failing : tuple of FailingSolution
        Further solutions that must not build.
    workload : Workload, optional
        Says how the inputs come about. By default the variable axes get small sizes and all
        tensors random values, which a definition with constraints, or with tensors that index
        into others, may not allow.
    root : Path, optional
        Where the workload's files are.
    inputs : callable, optional
        Makes the inputs, in place of a workload: new objects at each call, with the same values.
    device : str
        Where they are: ``"cpu"``, ``"cuda"``, …
    garbage : str
        What is put in the place of the entry file: no program in any language.
    rtol, atol : float, optional
        Tolerances, both or none; by default those of `torch.testing.assert_close`.
    other_options : CompileOptions, optional
        With these the solution must be compiled anew, or be refused. Default: its own, and a
        definition for the preprocessor (``-D…``) for both the host's compiler and nvcc.
    libraries : str
        Names of the files in the cache that are loaded, as a pattern: ``"*.wasm"``. Default: all
        files that are not text.
    plugin : str, optional
        The plugin's module, as in its entry point. Default: the top-level package of the factory.
    tolerates : mapping of str to str
        Changes to the process, or files left behind, that a library causes and the builder cannot
        help: the name as the failed test prints it, and why.
    """

    record: Union[BuilderSpec, str]
    definition: Definition
    solution: Solution
    twin: Optional[Solution] = None
    other_style: Optional[Solution] = None
    failing: tuple[FailingSolution, ...] = ()
    workload: Optional[Workload] = None
    root: Optional[Path] = None
    inputs: Optional[Callable[[], Sequence[Any]]] = None
    device: str = "cpu"
    garbage: str = "@@@ this is ]] not a program {{ in any language\n"
    rtol: Optional[float] = None
    atol: Optional[float] = None
    other_options: Optional[CompileOptions] = None
    libraries: str = ""
    plugin: Optional[str] = None
    tolerates: Mapping[str, str] = field(default_factory=dict)

    @property
    def factory(self) -> str:
        """Where the builder's class is."""
        return self.record if isinstance(self.record, str) else self.record.factory

    @property
    def spec(self) -> Optional[BuilderSpec]:
        """The record, where there is one."""
        return None if isinstance(self.record, str) else self.record

    @property
    def compiles(self) -> bool:
        """Whether builds leave something on disk that other processes load."""
        return bool(getattr(self.record, "compiles", False))

    @property
    def options(self) -> CompileOptions:
        """Compile options other than the solution's."""
        from flashinfer_bench.data import CompileOptions

        if self.other_options is not None:
            return self.other_options
        own = self.solution.spec.compile_options or CompileOptions()
        changes = {name: [*getattr(own, name), _DEFINE] for name in ("cflags", "cuda_cflags")}
        return own.model_copy(update=changes)

    @property
    def options_text(self) -> str:
        """What `options` says, for a message."""
        return self.options.model_dump_json(exclude_defaults=True)

    def make_inputs(self) -> list[Any]:
        """Return the inputs, made anew, in declaration order."""
        from flashinfer_bench.tensors import generate_inputs

        if self.inputs is not None:
            return list(self.inputs())
        workload = self.workload or default_workload(self.definition)
        return generate_inputs(
            self.definition, workload, seed=_SEED, root=self.root, device=self.device
        )

    def make_outputs(self, inputs: Sequence[Any]) -> list[Any]:
        """Return outputs to be written into, poisoned, for `inputs`."""
        from flashinfer_bench.tensors import allocate_outputs

        if self.workload is not None:
            axes = dict(self.workload.axes)
        else:
            axes = self.definition.get_axes_values_from_inputs(inputs)
        return list(allocate_outputs(self.definition, axes, self.device))


def default_workload(definition: Definition) -> Workload:
    """Return a workload with small, different sizes and random tensors.

    Parameters
    ----------
    definition : Definition
        One without constraints.

    Raises
    ------
    ValueError
        If it has constraints, which a size that is made up might break.
    """
    from flashinfer_bench.data import RandomInput, ScalarInput, Workload

    if definition.constraints:
        raise ValueError(
            f"definition {definition.name!r} has constraints on its axes "
            f"({'; '.join(definition.constraints)}): give the case a workload, or inputs"
        )
    from flashinfer_bench.tensors import to_python_type

    inputs: dict[str, Any] = {
        name: RandomInput()
        if spec.shape is not None
        else ScalarInput(value=_SCALARS[to_python_type(spec.dtype)])
        for name, spec in definition.inputs.items()
    }
    axes = {name: _SIZES[i % len(_SIZES)] for i, name in enumerate(definition.var_axes)}
    return Workload(axes=axes, inputs=inputs, uuid="conformance")
