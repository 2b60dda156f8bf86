"""The builder for solutions written in TileLang."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fib_builder_tilelang.explain import as_build_error, compiler_says, explain
from fib_builder_tilelang.loading import load_tilelang
from flashinfer_bench.compile import Builder, BuildError
from flashinfer_bench.compile.toolkit import load_python
from flashinfer_bench.data import SupportedLanguages

if TYPE_CHECKING:
    from flashinfer_bench.compile import Runnable
    from flashinfer_bench.data import Definition, Solution


class TileLangBuilder(Builder):
    """Imports a solution's sources as a separate package and returns the entry point.

    TileLang compiles kernels when the sources are imported, or when a function is first called. In
    the latter case the call raises compilation errors as a `BuildError`.
    """

    # Each process imports its own files; TileLang keeps compiled kernels in its own cache.
    shares_builds = False

    def __init__(self) -> None:
        super().__init__(package_prefix="fib_tilelang", build_dir_name="tilelang")

    @staticmethod
    def is_available() -> bool:
        """Return whether TileLang is installed."""
        return find_spec("tilelang") is not None

    def can_build(self, solution: Solution) -> bool:
        """Return whether the solution's language is TileLang."""
        return solution.spec.language == SupportedLanguages.TILELANG

    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Import a solution.

        Parameters
        ----------
        definition : Definition
            The function's signature is checked against it.
        solution : Solution
            One or more files; the entry point names a Python function, or a compiled kernel.

        Returns
        -------
        Runnable
            ``metadata.misc["package"]`` is the name of the package with its modules.

        Raises
        ------
        BuildError
            If the sources cannot be imported, which includes compiling kernels; or if the entry
            point is missing, or cannot be called with the definition's arguments.
        CapabilityError
            If TileLang cannot be imported.
        StorageError
            If the sources cannot be written.
        """
        load_tilelang()
        try:
            loaded = load_python(definition, solution, prefix=self.package_prefix)
        except BuildError as error:
            if not error.log:
                raise
            # One line, however long TileLang's message is.
            message, says = error.message.partition("\n")[0], compiler_says(error.log)
            if says:
                path = solution.get_entry_path()
                message = f"solution {solution.name!r}: importing {path} failed: {says}"
            raise as_build_error(message, error.log) from None
        return loaded.as_runnable(
            "tilelang", definition, solution, explain=partial(explain, solution, loaded.root)
        )
