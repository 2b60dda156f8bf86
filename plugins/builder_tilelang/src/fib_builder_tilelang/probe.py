"""Check whether TileLang solutions can run here, without importing anything."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from flashinfer_bench.compile.toolkit import availability, require_torch
from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from flashinfer_bench.plugins import Availability

# Importing TileLang fails if this has a release other than the one it was built for.
_TIED = "apache-tvm-ffi"


def probe() -> Availability:
    """Return whether TileLang and its dependencies are installed in compatible releases."""
    return availability(find_tilelang, find_tvm_ffi, require_torch)


def find_tilelang() -> str:
    """Return TileLang's name and version.

    Raises
    ------
    CapabilityError
        If it is not installed.
    """
    if find_spec("tilelang") is None:
        raise CapabilityError("tilelang is not installed", hint="pip install tilelang")
    try:
        return f"tilelang {version('tilelang')}"
    except PackageNotFoundError:  # a checkout in PYTHONPATH
        return "tilelang of unknown version"


def find_tvm_ffi() -> str:
    """Return name and version of the TVM FFI that TileLang uses.

    Raises
    ------
    CapabilityError
        If it is missing, or its release is incompatible with TileLang.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    try:
        found = version(_TIED)
    except PackageNotFoundError:
        found = ""
    try:
        needs = [Requirement(text) for text in requires("tilelang") or []]
    except PackageNotFoundError:
        needs = []
    for each in needs:
        applies = each.marker is None or each.marker.evaluate({"extra": ""})
        if canonicalize_name(each.name) != _TIED or not applies:
            continue
        if not found or not each.specifier.contains(found, prereleases=True):
            # The lower bound first, as is customary.
            bounds = ",".join(sorted(map(str, each.specifier), key=lambda bound: bound[:1] == "<"))
            state = f"{found} is installed" if found else "it is not installed"
            raise CapabilityError(
                f"{find_tilelang()} needs {_TIED} {bounds}, but {state}",
                hint=f"pip install '{_TIED}{bounds}'",
            )
    return f"{_TIED} {found}" if found else ""
