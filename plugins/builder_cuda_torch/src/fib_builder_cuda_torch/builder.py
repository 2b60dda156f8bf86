"""The builder for C++ and CUDA solutions that are extensions of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar
from uuid import uuid4

from fib_builder_cuda_torch.entry import find_entry_point
from fib_builder_cuda_torch.loading import load_library
from fib_builder_cuda_torch.probe import probe_cpp
from fib_builder_cuda_torch.recipe import make_recipe
from fib_builder_cuda_torch.scan import MODULE_NAME
from fib_native_toolkit import (
    BuildPlan,
    CompiledBuilder,
    LoadedLibrary,
    choose_style,
    guess_binding,
)
from fib_native_toolkit.recipe import run_recipe
from flashinfer_bench.data import SupportedBindings, SupportedLanguages

if TYPE_CHECKING:
    from pathlib import Path

    from fib_native_toolkit import Artefact
    from flashinfer_bench.data import Definition, Solution

_LANGUAGES = (SupportedLanguages.CPP, SupportedLanguages.CUDA)


class TorchBuilder(CompiledBuilder):
    """Compiles a solution's sources to an extension of torch, and loads that."""

    build_type: ClassVar[str] = "torch"

    def __init__(self) -> None:
        super().__init__(package_prefix="fib_torch", build_dir_name="torch")

    @staticmethod
    def is_available() -> bool:
        """Return whether C++ solutions can be built; those for CUDA need more, see the probes."""
        return probe_cpp().ok

    def can_build(self, solution: Solution) -> bool:
        """Return whether a solution is C++ or CUDA, and bound to Python by torch."""
        return (
            solution.spec.language in _LANGUAGES
            and guess_binding(solution) == SupportedBindings.TORCH
        )

    def plan(self, definition: Definition, solution: Solution) -> BuildPlan:
        """Find compilers and libraries, and settle all flags; torch is not imported."""
        recipe, key = make_recipe(solution)
        return BuildPlan(key, recipe, versioned_roots=recipe.headers)

    def compile_into(
        self, definition: Definition, solution: Solution, plan: BuildPlan, folder: Path
    ) -> str:
        """Run the compilers and the linker.

        Raises
        ------
        BuildError
            If one of them fails.
        CapabilityError
            If nvcc cannot make code for the GPUs of this machine.
        """
        # A name that no other library has, not even an older one of this solution: a process may
        # have that loaded still, and neither modules nor operators can be there twice.
        name = f"{self.package_prefix}_{uuid4().hex}"
        flags = [f"-D{MODULE_NAME}={name}"]
        return run_recipe(solution, plan.settings, folder, f"{name}.so", flags=flags)

    def load(self, definition: Definition, solution: Solution, artefact: Artefact) -> LoadedLibrary:
        """Load the library, find the entry point, and check how it can be called.

        Raises
        ------
        BuildError
            If the library cannot be loaded, or the entry point is missing or does not fit.
        """
        module = load_library(artefact.library, solution.name)
        entry = find_entry_point(artefact.library.stem, module, solution)
        style = choose_style(entry.signature or entry.function, definition, solution)
        return LoadedLibrary(entry.function, style, {"found_as": entry.place})
