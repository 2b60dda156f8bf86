"""Every exception that the project raises on purpose.

::

    FibError
    ├── ConfigError              a setting or an option is not allowed        (ValueError)
    ├── SelectionError           nothing, or something unknown, was selected  (LookupError)
    │   └── UnknownNameError     no such definition, solution, …              (KeyError)
    ├── CapabilityError          this machine or environment lacks something
    ├── DataError                a file or record is not valid                (ValueError)
    │   ├── DuplicateNameError   two definitions or solutions of one name
    │   ├── ConflictError        two datasets disagree
    │   ├── UnsafePathError      a path leads out of its folder
    │   └── BlobError            a tensor file is missing or not as described
    │       └── BlobNotFoundError   a tensor file is missing                  (FileNotFoundError)
    ├── DatasetNotFoundError     there is no dataset at that path             (FileNotFoundError)
    ├── StorageError             writing failed; existing data is kept        (OSError)
    ├── PluginError
    │   ├── PluginLoadError      a plugin raised when it was loaded
    │   └── PluginConflictError  two plugins claim one name
    ├── BuildError               a solution could not be built                (RuntimeError)
    │   └── BuildCapabilityError because this machine lacks something         (CapabilityError)
    ├── TimingError              a measurement could not be taken             (RuntimeError)
    └── RunnerError              an evaluation could not be carried out       (RuntimeError)
        ├── RunnerFatalError     … nor can any later one
        └── ProtocolError        a candidate sent a message that is not allowed

A message says what is wrong, where, and what is allowed; ``hint`` says what to do next.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

MISNAMED = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR)
"""Error codes that mean that the path itself is wrong, not the state of the disk."""


class FibError(Exception):
    """Base of all errors raised on purpose.

    Parameters
    ----------
    message : str
        What is wrong, where, and what is allowed.
    hint : str, optional
        What to do next.
    """

    def __init__(self, message: str, *, hint: Optional[str] = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class ConfigError(FibError, ValueError):
    """A setting or an option has a value that is not allowed."""


class SelectionError(FibError, LookupError):
    """A filter names something that does not exist, or leaves nothing to do.

    Parameters
    ----------
    message : str
        What was requested, and what is available.
    hint : str, optional
        What to do next.
    unknown : tuple of str
        The names that do not exist; empty if all exist but nothing is left to do.
    """

    def __init__(
        self, message: str, *, hint: Optional[str] = None, unknown: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.unknown = unknown


class UnknownNameError(SelectionError, KeyError):
    """A definition, solution or other record of that name does not exist."""

    @classmethod
    def of(cls, kind: str, names: Sequence[str], known: Iterable[str]) -> UnknownNameError:
        """Return the error for unknown names; its hint has similar names, else available ones."""
        from difflib import get_close_matches

        there = sorted(known)
        near = dict.fromkeys(like for name in names for like in get_close_matches(name, there, n=3))
        close = list(near) or [one for one in there if names[0] in one][:3]
        hint = f"did you mean {', '.join(close)}?"
        if not close:
            kinds = "axes" if kind.endswith("axis") else f"{kind}s"
            listed = [*there[:8], *["…"] * (len(there) > 8)]
            hint = f"available {kinds}: {', '.join(listed) or 'none'}"
        called = ", ".join(map(repr, names))
        return cls(f"no {kind} is called {called}", hint=hint, unknown=tuple(names))


class CapabilityError(FibError):
    """A device, library or plugin that the request needs is missing on this machine."""


class DataError(FibError, ValueError):
    """A file or a record does not follow the format.

    Parameters
    ----------
    message : str
        What is wrong and what is allowed.
    path : Path, optional
        The file.
    line : int, optional
        The line in it, counted from 1.
    field : str, optional
        The field, dotted: ``inputs.x.dtype``.
    hint : str, optional
        What to do next.
    """

    def __init__(
        self,
        message: str,
        *,
        path: Optional[Path] = None,
        line: Optional[int] = None,
        field: Optional[str] = None,
        hint: Optional[str] = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.line = line
        self.field = field

    @property
    def where(self) -> str:
        """The place as ``file:line: field``; unknown parts are left out."""
        place = str(self.path) if self.path is not None else ""
        if self.line is not None:
            place += f":{self.line}" if place else f"line {self.line}"
        if self.field:
            place += f": {self.field}" if place else self.field
        return place

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.where}: {text}" if self.where else text


class DuplicateNameError(DataError):
    """Two definitions, or two solutions, of one dataset have the same name."""


class ConflictError(DataError):
    """Two datasets have different records with the same name."""


class UnsafePathError(DataError):
    """A path leads out of the folder that it must stay in."""


class BlobError(DataError):
    """A tensor file is missing, unreadable, or not as the workload describes it."""


class BlobNotFoundError(BlobError, FileNotFoundError):
    """The tensor file does not exist."""


class DatasetNotFoundError(FibError, FileNotFoundError):
    """There is no dataset at the given path."""


class StorageError(FibError, OSError):
    """Writing failed; the data on disk is unchanged."""


class PluginError(FibError):
    """A plugin, or one of its records, cannot be used."""


class PluginLoadError(PluginError):
    """A plugin raised while it was loaded or registered."""


class PluginConflictError(PluginError):
    """Two distributions register the same name for the same kind."""


class BuildError(FibError, RuntimeError):
    """A solution could not be built into something that can be called.

    Parameters
    ----------
    message : str
        What failed, for which solution.
    hint : str, optional
        What to do next.
    log : str
        The complete output of the compiler or importer.
    """

    def __init__(self, message: str, *, hint: Optional[str] = None, log: str = "") -> None:
        super().__init__(message, hint=hint)
        self.log = log


class BuildCapabilityError(BuildError, CapabilityError):
    """A solution cannot be built on this machine; the solution itself may be fine."""


class TimingError(FibError, RuntimeError):
    """A measurement could not be taken."""


class RunnerError(FibError, RuntimeError):
    """An evaluation could not be carried out."""


class RunnerFatalError(RunnerError):
    """The runner cannot carry out any further evaluation."""


class ProtocolError(RunnerError):
    """The other side of a channel sent something that the protocol does not allow."""


class FibDeprecationWarning(DeprecationWarning):
    """A deprecated spelling is used; the message has the new one and the release that drops it."""
