"""What an adapter is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, Optional

from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Expects = Callable[[Callable[..., Any]], Optional[str]]
    """Looks at an original, and returns why this version of it is not supported; None if it is."""

Kind = Literal["function", "method"]
"""What a target is: a function of a module, or a method of a class."""


@dataclass(frozen=True)
class PatchSpec:
    """One function or method that an adapter wraps.

    Parameters
    ----------
    path : str
        Where callers find it: ``"library.module.function"`` or ``"library.module.Class.method"``.
    kind : str
        ``"function"`` or ``"method"``.
    name : str
        What the adapter calls it, which tells `Adapter.make_wrapper` which wrapper is wanted:
        ``"plan"``, ``"run"``.
    ctx_key : str
        What the targets of one adapter share, where a call of one has to be remembered for a later
        call of another.

    Raises
    ------
    ConfigError
        If the path is not dotted, or the kind unknown.
    """

    path: str
    kind: Kind
    name: str
    ctx_key: str = ""
    # Of no account when two are compared: what is the same target may be asked for twice, each time
    # with a function of its own.
    expects: Optional[Expects] = field(default=None, compare=False)
    definitions: tuple[str, ...] = ("*",)

    def __post_init__(self) -> None:
        parts = self.path.split(".")
        if len(parts) < 2 or not all(part.isidentifier() for part in parts):
            raise ConfigError(f"{self.path!r} is no dotted path, such as 'library.module.function'")
        if self.kind not in ("function", "method"):
            raise ConfigError(f"{self.path}: kind {self.kind!r} is neither 'function' nor 'method'")

    @property
    def library(self) -> str:
        """The top-level package of the path."""
        return self.path.partition(".")[0]

    def wanted(self, names: Iterable[str]) -> bool:
        """Return whether a call of it can be one of the definitions `names`."""
        if "*" in self.definitions:
            return any(True for _ in names)
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.definitions)


class Adapter(ABC):
    """Knows which functions of a library to wrap, and how.

    It is constructed without arguments, also where the library is not installed, and patches
    nothing itself: that is up to a `PatchManager`.

    A wrapper must not be noticed. While neither apply nor tracing is enabled it calls the original
    once, with the very arguments that it got, and returns the very object that this returns. What
    the original raises goes on to the caller; what goes wrong in the wrapper's own work does not:
    it calls the original instead.
    """

    @abstractmethod
    def targets(self) -> Sequence[PatchSpec]:
        """Return what is to be wrapped: the same each time, and without importing the library."""

    def late_targets(self) -> Sequence[PatchSpec]:
        """Return what is to be wrapped beyond `targets`, once the library is imported.

        For libraries that themselves say what there is to wrap: it may look at the library, which
        `sys.modules` has by now, and must import nothing that this has not imported. Asked anew
        each time that the adapter is installed. Default: nothing.
        """
        return ()

    @abstractmethod
    def make_wrapper(self, spec: PatchSpec, orig: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is put in the place of `orig`.

        Parameters
        ----------
        spec : PatchSpec
            One of `targets`, or of `late_targets`.
        orig : callable
            The function as it was. A method takes its object first.

        Returns
        -------
        callable
            With the name, the documentation and the signature of `orig`: use `functools.wraps`.
        """
