"""The builder for solutions written in Python, and its probe."""

from __future__ import annotations

from platform import python_version
from typing import TYPE_CHECKING

from flashinfer_bench.compile import Builder
from flashinfer_bench.compile.toolkit import availability, load_python, require_torch
from flashinfer_bench.data import SupportedLanguages

if TYPE_CHECKING:
    from flashinfer_bench.compile import Runnable
    from flashinfer_bench.data import Definition, Solution
    from flashinfer_bench.plugins import Availability


class PythonBuilder(Builder):
    """Imports a solution's sources as a separate package and returns the entry point."""

    # Each process writes and imports its own files.
    shares_builds = False

    def __init__(self) -> None:
        super().__init__(package_prefix="fib_python", build_dir_name="python")

    def can_build(self, solution: Solution) -> bool:
        """Return whether the solution's language is Python."""
        return solution.spec.language == SupportedLanguages.PYTHON

    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Import a solution.

        Parameters
        ----------
        definition : Definition
            The function's signature is checked against it.
        solution : Solution
            One or more files; the entry point names a function in a ``.py`` file.

        Returns
        -------
        Runnable
            ``metadata.misc["package"]`` is the name of the package with its modules.

        Raises
        ------
        BuildError
            If the entry file is not a Python file, cannot be imported, or does not define the entry
            symbol; or if the symbol cannot be called with the inputs (or inputs and outputs) of the
            definition.
        StorageError
            If the sources cannot be written.
        """
        loaded = load_python(definition, solution, prefix=self.package_prefix)
        return loaded.as_runnable("python", definition, solution)


def probe() -> Availability:
    """Return whether torch, which every solution needs, is installed; does not import it."""
    return availability(require_torch, lambda: f"Python {python_version()}")
