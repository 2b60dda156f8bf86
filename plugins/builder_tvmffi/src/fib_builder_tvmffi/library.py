"""The installed apache-tvm-ffi: found without importing it.

Importing ``tvm_ffi`` imports torch. Probes, plans and compilers need a version and folders only.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from flashinfer_bench.errors import CapabilityError

OLDEST = (0, 1, 11)
"""The first release whose interface is the one used here."""

_DISTRIBUTION = "apache-tvm-ffi"
_INSTALL = "pip install 'apache-tvm-ffi>=0.1.11'"


@dataclass(frozen=True)
class FfiLibrary:
    """Where headers and library of an installed apache-tvm-ffi are.

    Parameters
    ----------
    version : str
        Its version.
    include_path : Path
        The folder with ``tvm/ffi`` and ``dlpack``.
    library_path : Path
        The folder with ``libtvm_ffi.so``.
    """

    version: str
    include_path: Path
    library_path: Path

    def __str__(self) -> str:
        return f"{_DISTRIBUTION} {self.version}"


def find_tvm_ffi() -> FfiLibrary:
    """Return the installed apache-tvm-ffi.

    Raises
    ------
    CapabilityError
        If it is not installed, older than `OLDEST`, or without headers or library.
    """
    try:
        version = importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise CapabilityError(f"{_DISTRIBUTION} is not installed", hint=_INSTALL) from None
    if _numbers(version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise CapabilityError(
            f"{_DISTRIBUTION} {version} is too old, {oldest} is the oldest that will do",
            hint=_INSTALL,
        )
    return _with_folders(version)


def _numbers(version: str) -> tuple[int, ...]:
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in leading.group().split(".")) if leading else ()


def _with_folders(version: str) -> FfiLibrary:
    spec = importlib.util.find_spec("tvm_ffi")
    if spec is None or spec.origin is None:
        raise CapabilityError(
            f"{_DISTRIBUTION} {version} is installed, but there is no module tvm_ffi",
            hint=f"Install it again: pip install --force-reinstall '{_DISTRIBUTION}=={version}'",
        )
    root = Path(spec.origin).parent
    found = FfiLibrary(version, root / "include", root / "lib")
    for needed in (found.include_path / "tvm/ffi/function.h", found.library_path / "libtvm_ffi.so"):
        if not needed.is_file():
            raise CapabilityError(
                f"{_DISTRIBUTION} {version} in {root} lacks {needed.relative_to(root)}",
                hint="Install it from a wheel; an editable install is not supported.",
            )
    return found
