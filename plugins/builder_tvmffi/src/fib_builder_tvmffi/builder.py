"""The builder for solutions in C++ and CUDA that are called through TVM FFI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Optional

from fib_builder_tvmffi.recipe import Recipe, make_recipe
from fib_builder_tvmffi.results import returning_torch
from fib_builder_tvmffi.signature import Signature, choose_style, read_signature
from flashinfer_bench.compile.toolkit import (
    Artefact,
    BuildPlan,
    CompiledBuilder,
    LoadedLibrary,
    guess_binding,
)
from flashinfer_bench.data import SupportedBindings, SupportedLanguages
from flashinfer_bench.errors import BuildError, CapabilityError

if TYPE_CHECKING:
    from pathlib import Path

    from flashinfer_bench.data import Definition, Solution

_LANGUAGES = (SupportedLanguages.CPP, SupportedLanguages.CUDA)


class TVMFFIBuilder(CompiledBuilder):
    """Compiles a solution's sources into a library and loads it with apache-tvm-ffi.

    The commands are its own, and so is the folder that they work in: the library's own cache,
    locks and environment variables play no part.
    """

    build_type: ClassVar[str] = "tvm_ffi"

    def __init__(self) -> None:
        super().__init__(package_prefix="fib_tvm_ffi", build_dir_name="tvm_ffi")

    @staticmethod
    def is_available() -> bool:
        """Return whether C++ can be compiled here; CUDA may need more."""
        from fib_builder_tvmffi.probe import probe

        return probe().ok

    def can_build(self, solution: Solution) -> bool:
        """Return whether it is C++ or CUDA, and its functions are exported for TVM FFI.

        Without a declared binding they are, unless the sources show that they are torch's.
        """
        return (
            solution.spec.language in _LANGUAGES
            and guess_binding(solution) == SupportedBindings.TVM_FFI
        )

    def plan(self, definition: Definition, solution: Solution) -> BuildPlan:
        """Find the tools and put the commands together; see `make_recipe`."""
        recipe, key = make_recipe(solution)
        return BuildPlan(key, recipe, versioned_roots=recipe.headers)

    def compile_into(
        self, definition: Definition, solution: Solution, plan: BuildPlan, folder: Path
    ) -> str:
        """Compile and link, and check that the entry symbol is exported.

        Raises
        ------
        BuildError
            If something does not compile or link, or the entry symbol is not exported.
        """
        # Here, because most processes load what others have compiled.
        from fib_builder_tvmffi.compiling import run_recipe
        from fib_builder_tvmffi.exports import require_exported

        recipe: Recipe = plan.settings
        library = run_recipe(solution, recipe, folder)
        require_exported(solution, library)
        return library.relative_to(folder).as_posix()

    def load(self, definition: Definition, solution: Solution, artefact: Artefact) -> LoadedLibrary:
        """Load the library and look up the entry symbol; compare its signature to the definition.

        Raises
        ------
        BuildError
            If the library cannot be loaded, or the function cannot be called as the definition
            asks.
        CapabilityError
            If apache-tvm-ffi cannot be imported.
        """
        module = _load_module(solution, artefact.library)
        symbol = solution.get_entry_symbol()
        try:
            function = module.get_function(symbol)
        except AttributeError:
            raise _not_exported(solution, artefact.library) from None
        signature = read_signature(module.get_function_metadata(symbol))
        style = choose_style(signature, definition, solution)
        returns_torch = style or _returns_a_tensor(signature, definition)
        return LoadedLibrary(
            function if returns_torch else returning_torch(function),
            destination_passing_style=style,
            misc={"symbol": symbol, "signature": str(signature) if signature else None},
        )


def _returns_a_tensor(signature: Optional[Signature], definition: Definition) -> bool:
    """Return whether TVM FFI makes a torch tensor of the result; it does if it was given any."""
    given = any(spec.shape is not None for spec in definition.inputs.values())
    return given and signature is not None and signature.returns == "ffi.Tensor"


def _not_exported(solution: Solution, library: Path) -> BuildError:
    from fib_builder_tvmffi.exports import exported_names, not_exported

    return not_exported(solution, exported_names(library))


def _load_module(solution: Solution, library: Path) -> Any:
    try:
        import tvm_ffi
    except (ImportError, OSError) as error:
        raise CapabilityError(
            f"apache-tvm-ffi is installed, but cannot be imported: {error}",
            hint="Install it again: pip install --force-reinstall --no-deps apache-tvm-ffi",
        ) from error
    try:
        # The module stays loaded as long as the process: tensors that its functions have returned
        # are released by code in it.
        return tvm_ffi.load_module(str(library))
    except RuntimeError as error:
        reason, log = str(error).rpartition(str(library))[2].lstrip(": "), str(error)
    raise BuildError(
        f"solution {solution.name!r}: its library cannot be loaded: {reason}",
        hint="What it is linked with must be found when it is loaded, too: see ldd and -Wl,-rpath.",
        log=log,
    )
