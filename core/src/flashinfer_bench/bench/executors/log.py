"""What a process prints: read without waiting, kept within limits, made fit to show."""

from __future__ import annotations

import contextlib
import os
import re

_CHUNK = 2**16
# What one look may read: a process that never stops printing must not keep the judge here.
_AT_ONCE = 2**24
# Escape sequences first, then all other control characters but tabulator and newline.
_UNPRINTABLE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Return `text` from an untrusted source without control characters, newlines apart."""
    return _UNPRINTABLE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


class LogPipe:
    """Reads the log pipe of one process, and keeps the beginning and the end.

    Parameters
    ----------
    fd : int
        The reading end, which the object owns from now on.
    head, tail : int
        How many bytes of the beginning and of the end are kept.
    """

    def __init__(self, fd: int, *, head: int = 2**15, tail: int = 2**15) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._head_limit, self._tail_limit = head, tail
        self._head, self._tail = bytearray(), bytearray()
        self._dropped = 0

    def fileno(self) -> int:
        """Return the descriptor, -1 once the pipe has ended or been closed."""
        return self._fd

    def drain(self) -> None:
        """Read what is there, up to a limit; never waits."""
        left = _AT_ONCE
        while self._fd >= 0 and left > 0:
            try:
                chunk = os.read(self._fd, _CHUNK)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            if not chunk:
                self.close()
                return
            self._keep(chunk)
            left -= len(chunk)

    def _keep(self, chunk: bytes) -> None:
        room = self._head_limit - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        surplus = len(self._tail) - self._tail_limit
        if surplus > 0:
            del self._tail[:surplus]
            self._dropped += surplus

    def text(self) -> str:
        """Return what has been read so far, with a note where something is missing."""
        head, tail = self._head, self._tail
        if not self._dropped:
            return printable((head + tail).decode("utf-8", "replace"))
        note = f"\n… {self._dropped} bytes left out …\n"
        parts = (part.decode("utf-8", "replace") for part in (head, tail))
        return printable(note.join(parts))

    def close(self) -> None:
        """Close the pipe; idempotent. What was read stays."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)
