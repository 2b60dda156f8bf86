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
=================  ============================================================================
"""

from flashinfer_bench.compile.toolkit.cache import build_once, cache_folder, is_complete
from flashinfer_bench.compile.toolkit.locks import build_lock
from flashinfer_bench.compile.toolkit.logs import build_failed, describe_exception, first_error
from flashinfer_bench.compile.toolkit.naming import content_digest, declared_style, package_name
from flashinfer_bench.compile.toolkit.pymodule import SourcePackage, open_package
from flashinfer_bench.compile.toolkit.python import LoadedPython, find_entry, load_python
from flashinfer_bench.compile.toolkit.scratch import scratch_folder
from flashinfer_bench.compile.toolkit.signature import (
    Arity,
    annotated_length,
    choose_style,
    read_arity,
)
from flashinfer_bench.compile.toolkit.sources import check_relative_path, write_sources

__all__ = [
    "Arity",
    "LoadedPython",
    "SourcePackage",
    "annotated_length",
    "build_failed",
    "build_lock",
    "build_once",
    "cache_folder",
    "check_relative_path",
    "choose_style",
    "content_digest",
    "declared_style",
    "describe_exception",
    "find_entry",
    "first_error",
    "is_complete",
    "load_python",
    "open_package",
    "package_name",
    "read_arity",
    "scratch_folder",
    "write_sources",
]
