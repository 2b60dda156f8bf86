"""What authors of builders build on: stable, and documented for use outside of this project.

=================  ============================================================================
`sources`          write a solution's files into a folder, and nowhere else
`naming`           digests of all that a build depends on, and names made from them
`cache`            build once over all processes; whole results or none
`scratch`          folders that go away with the process
`locks`            one build at a time
`logs`             from a compiler's output or a traceback to a `BuildError`
`pymodule`         import a folder as a package of its own
`signature`        check a function against a definition, tell its calling convention
`python`           all of that for languages that live in Python
`tools`            find compilers, CUDA's toolkit and ninja
`probes`           from that to a probe's answer: `availability`
`run`              run them and keep what they print
`gpu`              the GPUs to compile for, without a CUDA context
`fingerprint`      what a compiled result depends on besides its sources
`options`          a solution's own flags, checked; its binding, guessed
`dependencies`     cuBLAS, cuDNN and CUTLASS
`compiled`         all of that for languages that are compiled: `CompiledBuilder`
=================  ============================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashinfer_bench._lazy import import_string
from flashinfer_bench.compile.toolkit.cache import build_once, cache_folder, is_complete
from flashinfer_bench.compile.toolkit.dependencies import Dependency, find_dependencies
from flashinfer_bench.compile.toolkit.fingerprint import (
    cpu_description,
    cuda_fingerprint,
    host_fingerprint,
    python_abi,
)
from flashinfer_bench.compile.toolkit.gpu import (
    cuda_architectures,
    gpu_architectures,
    unsupported_by_toolkit,
)
from flashinfer_bench.compile.toolkit.locks import build_lock
from flashinfer_bench.compile.toolkit.logs import (
    build_failed,
    causes,
    describe_exception,
    first_error,
)
from flashinfer_bench.compile.toolkit.naming import content_digest, declared_style, package_name
from flashinfer_bench.compile.toolkit.ninja import (
    ninja_command,
    ninja_dependencies,
    ninja_escape,
    read_dependencies,
)
from flashinfer_bench.compile.toolkit.options import checked_options, guess_binding
from flashinfer_bench.compile.toolkit.probes import availability
from flashinfer_bench.compile.toolkit.pymodule import SourcePackage, open_package
from flashinfer_bench.compile.toolkit.python import LoadedPython, find_entry, load_python
from flashinfer_bench.compile.toolkit.run import (
    COMPILER_LOG,
    ToolOutput,
    check_output,
    run_tool,
)
from flashinfer_bench.compile.toolkit.scratch import scratch_folder
from flashinfer_bench.compile.toolkit.signature import (
    Arity,
    annotated_length,
    choose_style,
    read_arity,
)
from flashinfer_bench.compile.toolkit.sources import check_relative_path, write_sources
from flashinfer_bench.compile.toolkit.tools import (
    Tool,
    cuda_home,
    find_cc,
    find_cxx,
    find_ninja,
    find_nvcc,
)

if TYPE_CHECKING:
    from flashinfer_bench.compile.toolkit.compiled import (
        Artefact,
        BuildPlan,
        CompiledBuilder,
        LoadedLibrary,
    )

# Its base class needs this package: whoever imports that first would go round in a circle.
_COMPILED = ("Artefact", "BuildPlan", "CompiledBuilder", "LoadedLibrary")

__all__ = [
    "COMPILER_LOG",
    "Arity",
    "Artefact",
    "BuildPlan",
    "CompiledBuilder",
    "Dependency",
    "LoadedLibrary",
    "LoadedPython",
    "SourcePackage",
    "Tool",
    "ToolOutput",
    "annotated_length",
    "availability",
    "build_failed",
    "build_lock",
    "build_once",
    "cache_folder",
    "causes",
    "check_output",
    "check_relative_path",
    "checked_options",
    "choose_style",
    "content_digest",
    "cpu_description",
    "cuda_architectures",
    "cuda_fingerprint",
    "cuda_home",
    "declared_style",
    "describe_exception",
    "find_cc",
    "find_cxx",
    "find_dependencies",
    "find_entry",
    "find_ninja",
    "find_nvcc",
    "first_error",
    "gpu_architectures",
    "guess_binding",
    "host_fingerprint",
    "is_complete",
    "load_python",
    "ninja_command",
    "ninja_dependencies",
    "ninja_escape",
    "open_package",
    "package_name",
    "python_abi",
    "read_arity",
    "read_dependencies",
    "run_tool",
    "scratch_folder",
    "unsupported_by_toolkit",
    "write_sources",
]


def __getattr__(name: str) -> Any:
    if name not in _COMPILED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = import_string(f"{__name__}.compiled:{name}")
    globals()[name] = value
    return value
