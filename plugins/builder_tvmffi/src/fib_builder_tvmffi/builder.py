"""The builder for solutions in C++ and CUDA that are called through TVM FFI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Optional

from fib_builder_tvmffi.exports import (
    Signature,
    exported_names,
    not_exported,
    read_signature,
    style_of,
)
from fib_builder_tvmffi.probe import probe
from fib_builder_tvmffi.recipe import EXPORTS, make_recipe
from fib_native_toolkit import (
    Artefact,
    BuildPlan,
    CompiledBuilder,
    LoadedLibrary,
    guess_binding,
)
from fib_native_toolkit.recipe import OBJECTS, run_recipe
from flashinfer_bench.data import SupportedBindings, SupportedLanguages
from flashinfer_bench.errors import BuildError, CapabilityError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from flashinfer_bench.data import Definition, Solution

_LANGUAGES = (SupportedLanguages.CPP, SupportedLanguages.CUDA)
_LIBRARY = "solution.so"
# Only the exports are visible from outside. Otherwise solutions in one process would share symbols
# of the same name, especially inline variables, and libraries loaded by torch would take precedence
# over a solution's own definitions.
_EXPORTS_TEXT = "{ global: __tvm_ffi_*; local: *; };\n"


class TVMFFIBuilder(CompiledBuilder):
    """Compiles a solution's sources into a library and loads it with apache-tvm-ffi.

    The builder runs its own commands in its own folder; the cache, locks and environment variables
    of apache-tvm-ffi are not used.
    """

    build_type: ClassVar[str] = "tvm_ffi"

    def __init__(self) -> None:
        super().__init__(package_prefix="fib_tvm_ffi", build_dir_name="tvm_ffi")

    @staticmethod
    def is_available() -> bool:
        """Return whether C++ can be compiled here; CUDA needs more, see the probes."""
        return probe().ok

    def can_build(self, solution: Solution) -> bool:
        """Return whether it is C++ or CUDA whose functions are exported for TVM FFI.

        Without a declared binding this is assumed, unless the sources use torch's macros.
        """
        return (
            solution.spec.language in _LANGUAGES
            and guess_binding(solution) == SupportedBindings.TVM_FFI
        )

    def plan(self, definition: Definition, solution: Solution) -> BuildPlan:
        """Find the tools and assemble the commands; see `make_recipe`."""
        recipe, key = make_recipe(solution)
        return BuildPlan(key, recipe, versioned_roots=recipe.headers)

    def compile_into(
        self, definition: Definition, solution: Solution, plan: BuildPlan, folder: Path
    ) -> str:
        """Compile and link, and check that the entry symbol is exported.

        Raises
        ------
        BuildError
            If compiling or linking fails, or the entry symbol is not exported.
        """
        (folder / OBJECTS).mkdir()
        (folder / OBJECTS / EXPORTS).write_text(_EXPORTS_TEXT, encoding="utf-8")
        library = run_recipe(solution, plan.settings, folder, _LIBRARY)
        made = folder / library
        if made.is_file() and solution.get_entry_symbol() not in exported_names(made):
            raise not_exported(solution, made)
        return library

    def load(self, definition: Definition, solution: Solution, artefact: Artefact) -> LoadedLibrary:
        """Load the library, look up the entry symbol, and check it against the definition.

        Raises
        ------
        BuildError
            If the library cannot be loaded, or the function cannot be called with the definition's
            arguments.
        CapabilityError
            If apache-tvm-ffi cannot be imported.
        """
        module = _load_module(solution, artefact.library)
        symbol = solution.get_entry_symbol()
        try:
            function = module.get_function(symbol)
        except AttributeError:
            raise not_exported(solution, artefact.library) from None
        signature = read_signature(module.get_function_metadata(symbol))
        style = style_of(signature, definition, solution)
        returns_torch = style or _returns_a_tensor(signature, definition)
        return LoadedLibrary(
            function if returns_torch else returning_torch(function),
            destination_passing_style=style,
            misc={"symbol": symbol, "signature": str(signature) if signature else None},
        )


def _returns_a_tensor(signature: Optional[Signature], definition: Definition) -> bool:
    """Return whether TVM FFI returns torch tensors; it does if any argument is one."""
    given = any(spec.shape is not None for spec in definition.inputs.values())
    return given and signature is not None and signature.returns == "ffi.Tensor"


def _load_module(solution: Solution, library: Path) -> Any:
    try:
        import tvm_ffi
    except (ImportError, OSError) as error:
        raise CapabilityError(
            f"apache-tvm-ffi is installed, but cannot be imported: {error}",
            hint="Install it again: pip install --force-reinstall --no-deps apache-tvm-ffi",
        ) from error
    try:
        # The module stays loaded until the process ends: code in it releases the tensors that its
        # functions have returned.
        return tvm_ffi.load_module(str(library))
    except RuntimeError as error:
        reason, log = str(error).rpartition(str(library))[2].lstrip(": "), str(error)
    raise BuildError(
        f"solution {solution.name!r}: its library cannot be loaded: {reason}",
        hint="The libraries it links must also be found at load time: see ldd and -Wl,-rpath.",
        log=log,
    )


def returning_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with its results converted to Python and torch objects.

    TVM FFI returns a tensor from its environment's allocator as a torch tensor, but wraps
    collections. Here its arrays and tuples become tuples, its maps become dicts, and its own
    tensors become torch tensors that share their memory.

    Parameters
    ----------
    function : callable
        An exported function.
    """
    import torch

    plain = torch.Tensor

    def call(*args: Any) -> Any:
        result = function(*args)
        # The common case first, before any look-up.
        return result if type(result) is plain else _to_torch(result)

    return call


def _to_torch(value: Any) -> Any:
    import tvm_ffi
    from torch.utils.dlpack import from_dlpack

    if isinstance(value, tvm_ffi.Tensor):
        return from_dlpack(value)
    if isinstance(value, (tvm_ffi.Array, tvm_ffi.List)):
        return tuple(_to_torch(member) for member in value)
    if isinstance(value, (tvm_ffi.Map, tvm_ffi.Dict)):
        return {str(name): _to_torch(member) for name, member in value.items()}
    return value
