"""The stable public interface for authors of builders.

For a language embedded in Python this module is enough: `load_python` does all the work. Builders
of compiled languages need more (compilers, CUDA, `CompiledBuilder`), which the distribution
``fib-native-toolkit`` provides; its names can also be imported from here.

=================  ============================================================================
`builder`          digests of all inputs of a build, and names derived from them; write sources;
                   from compiler output or a traceback to a `BuildError`
`cache`            atomic builds, once across all processes; per-process scratch folders
`machine`          the GPUs and the CPU, without a CUDA context; probe results
`python`           import a folder as a package; check a function against a definition
=================  ============================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench._lazy import moved
from flashinfer_bench.compile.builder import build_failed as build_failed
from flashinfer_bench.compile.builder import causes as causes
from flashinfer_bench.compile.builder import check_relative_path as check_relative_path
from flashinfer_bench.compile.builder import content_digest as content_digest
from flashinfer_bench.compile.builder import declared_style as declared_style
from flashinfer_bench.compile.builder import describe_exception as describe_exception
from flashinfer_bench.compile.builder import first_error as first_error
from flashinfer_bench.compile.builder import package_name as package_name
from flashinfer_bench.compile.builder import write_sources as write_sources
from flashinfer_bench.compile.cache import build_lock as build_lock
from flashinfer_bench.compile.cache import build_once as build_once
from flashinfer_bench.compile.cache import cache_folder as cache_folder
from flashinfer_bench.compile.cache import is_complete as is_complete
from flashinfer_bench.compile.cache import scratch_folder as scratch_folder
from flashinfer_bench.compile.machine import availability as availability
from flashinfer_bench.compile.machine import cpu_description as cpu_description
from flashinfer_bench.compile.machine import gpu_architectures as gpu_architectures
from flashinfer_bench.compile.machine import require_torch as require_torch
from flashinfer_bench.compile.python import Arity as Arity
from flashinfer_bench.compile.python import LoadedPython as LoadedPython
from flashinfer_bench.compile.python import SourcePackage as SourcePackage
from flashinfer_bench.compile.python import annotated_length as annotated_length
from flashinfer_bench.compile.python import choose_style as choose_style
from flashinfer_bench.compile.python import find_entry as find_entry
from flashinfer_bench.compile.python import load_python as load_python
from flashinfer_bench.compile.python import open_package as open_package
from flashinfer_bench.compile.python import read_arity as read_arity

if TYPE_CHECKING:  # names for compiled languages are imported on first use
    from fib_native_toolkit.names import *  # noqa: F403

__getattr__, _native_names = moved(__name__, "fib_native_toolkit")


def __dir__() -> list[str]:
    return sorted({*globals(), *_native_names()})
