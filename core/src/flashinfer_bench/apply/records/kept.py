"""What was read of a dataset's files, kept on disk and found again by the files' contents.

A table is made anew whenever anything of its dataset has changed; mostly that is one of many files.
What the others say is kept here, and of a file to which lines were appended what it said before.
Each piece is filed under the SHA-256 of the content that it was read from: times, sizes and names
of files decide nothing. Only what was read without any problem is kept, so that the problems are
told again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from typing import TYPE_CHECKING, NamedTuple, Optional

import msgspec

from flashinfer_bench._version import __version__
from flashinfer_bench.apply import disk
from flashinfer_bench.apply.records.runs import FileRuns
from flashinfer_bench.apply.snapshot import digest_of
from flashinfer_bench.apply.source import SolutionHead  # noqa: TC001 - the decoder looks it up

if TYPE_CHECKING:
    from pathlib import Path

    from flashinfer_bench.apply.records import Reading
    from flashinfer_bench.apply.records.runs import Texts

_logger = logging.getLogger(__name__)

FORMAT = 1
"""Number of the format, raised with every change of it or of what is taken from a file."""

_MOST_BYTES = 64 << 20  # more than that is read and written for a single line that is new


class _Runs(msgspec.Struct, array_like=True, gc=False):
    """The runs of a file of this digest and size; decoded when they are asked for."""

    digest: bytes
    size: int
    may_grow: bool
    runs: msgspec.Raw


class _Head(msgspec.Struct, array_like=True, gc=False):
    digest: bytes
    head: SolutionHead


class _Content(msgspec.Struct, array_like=True, gc=False):
    """Both by path."""

    runs: dict[str, _Runs] = msgspec.field(default_factory=dict)
    heads: dict[str, _Head] = msgspec.field(default_factory=dict)


class Beginning(NamedTuple):
    """The runs in the first `size` bytes of a file."""

    runs: Optional[FileRuns]
    size: int


_NOTHING = Beginning(None, 0)


class Kept:
    """What is kept of one dataset.

    Whatever is neither found nor added between making this and `save` is forgotten.

    Parameters
    ----------
    root : Path
        The dataset.
    """

    def __init__(self, root: Path) -> None:
        name = hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
        self._file = disk.folder() / f"{name}.kept"
        self._old = _read(self._file)
        self._new = _Content()
        self._has_changed = False

    def head(self, path: str, digest: bytes) -> Optional[SolutionHead]:
        """Return what was kept of the solution in a file with this content.

        Parameters
        ----------
        path : str
            The file.
        digest : bytes
            Of its content; empty if that is not known.
        """
        known = self._old.heads.get(path)
        if known is None or known.digest != digest:
            return None
        self._new.heads[path] = known
        return known.head

    def add_head(self, path: str, digest: bytes, head: SolutionHead) -> None:
        """Keep what is needed of a solution; its digest may be filled in later."""
        self._new.heads[path] = _Head(digest, head)
        self._has_changed = True

    def runs(self, path: str, digest: bytes, texts: Texts) -> Optional[FileRuns]:
        """Return the runs in a file with this content, None if they are not known.

        Parameters
        ----------
        path : str
            The file.
        digest : bytes
            Of its content; empty if that is not known.
        texts : Texts
            Takes up the workloads and environments.
        """
        known = self._old.runs.get(path)
        if known is None or known.digest != digest:
            return None
        runs = _decoded(known, texts)
        if runs is not None:
            self._new.runs[path] = known
        return runs

    def beginning(self, path: str, data: bytes, texts: Texts) -> Beginning:
        """Return the runs in the part of a file that was there before lines were appended.

        Parameters
        ----------
        path : str
            The file.
        data : bytes
            Its content.
        texts : Texts
            Takes up the workloads and environments.
        """
        known = self._old.runs.get(path)
        if known is None or not known.may_grow or not 0 < known.size < len(data):
            return _NOTHING
        if digest_of(memoryview(data)[: known.size]) != known.digest:
            return _NOTHING
        runs = _decoded(known, texts)
        return _NOTHING if runs is None else Beginning(runs, known.size)

    def add_runs(self, path: str, digest: bytes, size: int, reading: Reading) -> None:
        """Keep what was read of a file without any problem.

        Parameters
        ----------
        path : str
            The file.
        digest : bytes
            Of its content.
        size : int
            Of its content in bytes.
        reading : Reading
            What was read.
        """
        try:
            runs = msgspec.Raw(msgspec.msgpack.encode(reading.runs))
        except (OverflowError, ValueError, RecursionError) as error:
            _logger.debug("%s: its runs cannot be kept: %s", path, error)
            return
        self._new.runs[path] = _Runs(digest, size, reading.may_grow, runs)
        self._has_changed = True

    def save(self) -> bool:
        """Write everything that was found or added; return whether it is on disk now."""
        gone = len(self._new.runs) < len(self._old.runs) or (
            len(self._new.heads) < len(self._old.heads)
        )
        if not self._has_changed and not gone:
            return True
        try:
            payload = msgspec.msgpack.encode(self._new)
        except UnicodeEncodeError as error:  # names of files that are no text
            _logger.debug("%s: cannot be written: %s", self._file, error)
            return False
        if len(payload) > _MOST_BYTES:
            _logger.debug("%s: too large to be worth it: %d bytes", self._file, len(payload))
            return False
        return disk.write(self._file, _purpose(), payload)


_content_decoder = msgspec.msgpack.Decoder(_Content)
_runs_decoder = msgspec.msgpack.Decoder(FileRuns)


def _purpose() -> bytes:
    return json.dumps(["kept", FORMAT, __version__]).encode() + b"\n"


def _read(file: Path) -> _Content:
    payload = disk.read(file, _purpose())
    if payload is not None:
        with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
            return _content_decoder.decode(payload)
    return _Content()


def _decoded(known: _Runs, texts: Texts) -> Optional[FileRuns]:
    """Return runs whose workloads and environments are valid; None if anything is wrong."""
    with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
        runs = _runs_decoder.decode(known.runs)
        if runs.is_sound():
            runs.take_up(texts)
            return runs
    return None
