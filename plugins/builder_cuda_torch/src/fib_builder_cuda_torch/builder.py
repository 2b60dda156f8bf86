"""The builder for C++ and CUDA solutions that are torch extensions."""

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
    """Compiles a solution's sources to a torch extension, and loads it."""

    build_type: ClassVar[str] = "torch"

    def __init__(self) -> None:
        super().__init__(package_prefix="fib_torch", build_dir_name="torch")

    @staticmethod
    def is_available() -> bool:
        """Return whether C++ solutions can be built; CUDA needs more, see the probes."""
        return probe_cpp().ok

    def can_build(self, solution: Solution) -> bool:
        """Return whether a solution is written in C++ or CUDA with the torch binding."""
        return (
            solution.spec.language in _LANGUAGES
            and guess_binding(solution) == SupportedBindings.TORCH
        )

    def plan(self, definition: Definition, solution: Solution) -> BuildPlan:
        """Find compilers and libraries, and determine all flags, without importing torch."""
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
            If nvcc cannot generate code for the GPUs of this machine.
        """
        # A unique name, different even from older versions of this solution: a process may still
        # have one of them loaded, and modules and operators cannot be registered twice.
        name = f"{self.package_prefix}_{uuid4().hex}"
        flags = [f"-D{MODULE_NAME}={name}"]
        return run_recipe(solution, plan.settings, folder, f"{name}.so", flags=flags)

    def load(self, definition: Definition, solution: Solution, artefact: Artefact) -> LoadedLibrary:
        """Load the library, find the entry point, and check its signature.

        Raises
        ------
        BuildError
            If the library cannot be loaded, or the entry point is missing or has the wrong
            signature.
        """
        module = load_library(artefact.library, solution.name)
        entry = find_entry_point(artefact.library.stem, module, solution)
        style = choose_style(entry.signature or entry.function, definition, solution)
        return LoadedLibrary(entry.function, style, {"found_as": entry.place})
