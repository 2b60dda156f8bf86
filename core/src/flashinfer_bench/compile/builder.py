"""What a builder is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from flashinfer_bench.compile.toolkit.cache import cache_folder, is_complete, own_place
from flashinfer_bench.compile.toolkit.naming import content_digest, package_name
from flashinfer_bench.errors import BuildError as BuildError  # its place in older releases

if TYPE_CHECKING:
    from pathlib import Path

    from flashinfer_bench.compile.runnable import Runnable
    from flashinfer_bench.data import Definition, Solution


class Builder(ABC):
    """Turns a solution into a `Runnable`.

    A builder is instantiated once for each registry and may be called from several threads.
    Whatever it leaves on disk belongs below `build_dir`, in a folder named after all that the
    result depends on: `build_path` gives one.

    Parameters
    ----------
    package_prefix : str
        Begins the names of all its packages; no other builder uses it.
    build_dir_name : str
        Name of its folder in the cache; no other builder uses it.

    Attributes
    ----------
    shares_builds : bool
        Whether builds leave something on disk that other processes use. If so, the registry lets
        only one process at a time build one solution.
    """

    shares_builds: bool = True

    def __init__(self, package_prefix: str, build_dir_name: str) -> None:
        self.package_prefix = package_prefix
        self.build_dir_name = build_dir_name

    @staticmethod
    def is_available() -> bool:
        """Return whether the builder can be used here; without an override, it can.

        A builder that is registered by a plugin says this by its probe, and is not asked.
        """
        return True

    @abstractmethod
    def can_build(self, solution: Solution) -> bool:
        """Return whether this builder handles solutions of that language and binding."""

    @abstractmethod
    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Build a solution.

        Parameters
        ----------
        definition : Definition
            The interface that the result must have.
        solution : Solution
            One that `can_build` accepts.

        Returns
        -------
        Runnable
            The result. It owns whatever its cleaner releases.

        Raises
        ------
        BuildError
            If it cannot be built. The error is kept, and raised again if the same is to be built.
        StorageError
            If the disk is full or not writable; the next call tries again.
        """

    def compile(self, definition: Definition, solution: Solution) -> object:
        """Do the part of a build that other processes can use; neither load nor call the solution.

        So solutions can be compiled ahead, many at a time, while a device is busy with another. The
        default does nothing: then everything is left to `build`. What it returns is for those who
        know the builder.

        Parameters
        ----------
        definition : Definition
            The interface that the result must have.
        solution : Solution
            One that `can_build` accepts.

        Raises
        ------
        BuildError
            If it cannot be compiled.
        StorageError
            If the disk is full or not writable.
        """
        return None

    @property
    def build_dir(self) -> Path:
        """The builder's folder in the cache."""
        return cache_folder(self.build_dir_name)

    def package_name(self, definition: Definition, solution: Solution, *extra: object) -> str:
        """Return a name for the build; `extra` is whatever else the result depends on."""
        digest = content_digest(definition, solution, self.package_prefix, *extra)
        return package_name(self.package_prefix, solution, digest)

    def build_path(self, definition: Definition, solution: Solution, *extra: object) -> Path:
        """Return the folder for the build; it may not exist yet. See `toolkit.build_once`."""
        digest = content_digest(definition, solution, self.package_prefix, *extra)
        folder = self.build_dir / f"{self.package_prefix}_{digest}"
        return folder if is_complete(folder) else own_place(folder)
