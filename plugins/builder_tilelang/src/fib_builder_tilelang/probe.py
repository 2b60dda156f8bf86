"""Whether TileLang solutions can run here; nothing is imported to find out."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from flashinfer_bench.compile.toolkit import availability, require_torch
from flashinfer_bench.errors import CapabilityError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from flashinfer_bench.plugins import Availability

# TileLang fails while it is imported where this is of another release than it was made for.
_TIED = "apache-tvm-ffi"


def probe() -> Availability:
    """Return whether TileLang is installed, with what it needs, in releases that fit together."""
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
    """Return name and version of the TVM FFI that TileLang works with.

    Raises
    ------
    CapabilityError
        If it is missing, or of a release that TileLang cannot be imported with.
    """
    needed = _needed()
    try:
        found = version(_TIED)
    except PackageNotFoundError:
        found = ""
    if needed is None or (found and needed.specifier.contains(found, prereleases=True)):
        return f"{_TIED} {found}" if found else ""
    # The lower bound first, as people write it.
    bounds = ",".join(sorted(map(str, needed.specifier), key=lambda bound: bound[:1] == "<"))
    state = f"{found} is installed" if found else "it is not installed"
    raise CapabilityError(
        f"{find_tilelang()} needs {_TIED} {bounds}, but {state}",
        hint=f"pip install '{_TIED}{bounds}'",
    )


def _needed() -> Requirement | None:
    """Return what the installed TileLang says about `_TIED`."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    try:
        requirements = map(Requirement, requires("tilelang") or [])
    except PackageNotFoundError:
        return None
    for requirement in requirements:
        marker = requirement.marker
        wanted = canonicalize_name(requirement.name) == _TIED
        if wanted and (marker is None or marker.evaluate({"extra": ""})):
            return requirement
    return None
