"""The builder for solutions written in Triton."""

from __future__ import annotations

import logging
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fib_builder_triton import interpreter, tuning
from fib_builder_triton.explain import explain
from flashinfer_bench.compile import Builder, BuildError
from flashinfer_bench.compile.toolkit import load_python
from flashinfer_bench.data import SupportedLanguages

if TYPE_CHECKING:
    from flashinfer_bench.compile import Runnable
    from flashinfer_bench.data import Definition, Solution

logger = logging.getLogger(__name__)


class TritonBuilder(Builder):
    """Imports a solution's sources as a separate package and returns the entry point.

    Triton compiles the kernels on their first call, which raises compilation errors as a
    `BuildError`.
    """

    # Each process imports its own files; Triton keeps compiled kernels in its own cache.
    shares_builds = False

    def __init__(self) -> None:
        super().__init__(package_prefix="fib_triton", build_dir_name="triton")

    @staticmethod
    def is_available() -> bool:
        """Return whether Triton is installed."""
        return find_spec("triton") is not None

    def can_build(self, solution: Solution) -> bool:
        """Return whether the solution's language is Triton."""
        return solution.spec.language == SupportedLanguages.TRITON

    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Import a solution.

        Parameters
        ----------
        definition : Definition
            The function's signature is checked against it.
        solution : Solution
            One or more files; the entry point names a Python function that launches kernels.

        Returns
        -------
        Runnable
            ``metadata.misc["interpreted"]`` tells whether its kernels run in Triton's interpreter;
            if so, ``metadata.misc["notes"]`` lists the limitations.

        Raises
        ------
        BuildError
            If the sources cannot be imported, or the entry point is missing, is a kernel, or cannot
            be called with the definition's arguments.
        CapabilityError
            If ``TRITON_INTERPRET`` was changed after Triton had been imported.
        StorageError
            If the sources cannot be written.
        """
        interpreted = interpreter.interpreter_wanted()
        if interpreted:
            interpreter.enter()
        else:
            interpreter.check_unchanged()
        loaded = load_python(definition, solution, prefix=self.package_prefix)
        kinds = type(loaded.function).__mro__
        if any(kind.__name__ == "KernelInterface" for kind in kinds):
            loaded.cleaner()
            raise BuildError(
                f"solution {solution.name!r}: {solution.get_entry_path()}: "
                f"{solution.get_entry_symbol()!r} is a Triton kernel, which cannot be called by "
                "itself",
                hint="Name a Python function that launches it: kernel[grid](…).",
            )
        notes = interpreter.notes(definition) if interpreted else ()
        for note in notes:
            logger.warning("solution %r: %s", solution.name, note)
        if interpreted:
            loaded = loaded._replace(function=interpreter.one_at_a_time(loaded.function))
        else:
            tuning.compile_at_once(loaded.package)
        return loaded.as_runnable(
            "triton",
            definition,
            solution,
            explain=partial(explain, solution, loaded.root),
            interpreted=interpreted,
            notes=list(notes),
        )
