"""What authors of builders build on: stable, and documented for use outside of this project.

For a language that lives in Python this module is enough: `load_python` does it all. What builders
of compiled languages need besides (compilers, CUDA, ninja, `CompiledBuilder`) is in the
distribution ``fib-native-toolkit``; its names can be imported from here, too.

=================  ============================================================================
`builder`          digests of all that a build depends on, names made from them; write sources
`cache`            build once over all processes; whole results or none; folders of one process
`logs`             from a compiler's output or a traceback to a `BuildError`
`machine`          the GPUs and the CPU, without a CUDA context; answers of probes
`python`           import a folder as a package, check a function against a definition: all that
                   languages which live in Python need
=================  ============================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench._lazy import moved
from flashinfer_bench.compile.builder import (
    check_relative_path,
    content_digest,
    declared_style,
    package_name,
    write_sources,
)
from flashinfer_bench.compile.cache import (
    build_lock,
    build_once,
    cache_folder,
    is_complete,
    scratch_folder,
)
from flashinfer_bench.compile.logs import build_failed, causes, describe_exception, first_error
from flashinfer_bench.compile.machine import (
    availability,
    cpu_description,
    cuda_architectures,
    gpu_architectures,
    require_torch,
)
from flashinfer_bench.compile.python import (
    Arity,
    LoadedPython,
    SourcePackage,
    annotated_length,
    choose_style,
    find_entry,
    load_python,
    open_package,
    read_arity,
)

if TYPE_CHECKING:  # the names of compiled languages are looked up when they are first used
    from fib_native_toolkit.names import *  # noqa: F403

__all__ = [
    "Arity",
    "LoadedPython",
    "SourcePackage",
    "annotated_length",
    "availability",
    "build_failed",
    "build_lock",
    "build_once",
    "cache_folder",
    "causes",
    "check_relative_path",
    "choose_style",
    "content_digest",
    "cpu_description",
    "cuda_architectures",
    "declared_style",
    "describe_exception",
    "find_entry",
    "first_error",
    "gpu_architectures",
    "is_complete",
    "load_python",
    "open_package",
    "package_name",
    "read_arity",
    "require_torch",
    "scratch_folder",
    "write_sources",
]

__getattr__, _native_names = moved(__name__, "fib_native_toolkit", "fib-native-toolkit")


def __dir__() -> list[str]:
    return sorted({*__all__, *_native_names()})
