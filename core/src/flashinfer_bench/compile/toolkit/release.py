"""Which release of a builder has made a build."""

from __future__ import annotations

from functools import cache


@cache
def release_of(module: str) -> str:
    """Return name and version of the distribution that a builder's module belongs to.

    Parameters
    ----------
    module : str
        Such as ``fib_builder_example.builder``.

    Returns
    -------
    str
        Such as ``fib-builder-example 1.2.0``. Empty for a module of no installed distribution that
        has the package's name or registers it as a plugin.
    """
    from importlib.metadata import PackageNotFoundError, entry_points, version

    package = module.partition(".")[0]
    name = package.replace("_", "-")
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        pass
    for point in entry_points(group="flashinfer_bench.plugins"):
        if point.module.partition(".")[0] == package and point.dist is not None:
            return f"{point.dist.name} {point.dist.version}"
    return ""
