"""Which logs a page takes along, and in what length, so that it stays small."""

from __future__ import annotations

import re
import zlib

WHOLE = 4_000
"""Characters of a log that is taken along as it is; of a longer one both ends are."""

FULL_BYTES = 1_150_000
"""Compressed size of all logs from which on only their last lines are taken along."""

MOST_BYTES = 1_300_000
"""Compressed size of all logs from which on none is taken along."""

_TAIL = 200
_ROW = 400
_COLOUR = re.compile("\x1b\\[[0-9;:]*m")


class LogBook:
    """Collects logs, each different one once, and stops where the page would get too large.

    Parameters
    ----------
    full_bytes, most_bytes : int
        See `FULL_BYTES` and `MOST_BYTES`.
    """

    def __init__(self, full_bytes: int = FULL_BYTES, most_bytes: int = MOST_BYTES) -> None:
        self.texts: list[str] = []
        self._places: dict[str, int] = {}
        self._full, self._most = full_bytes, most_bytes
        # A running compressor tells what a log really costs: most repeat what others say.
        self._compressor = zlib.compressobj(6)
        self._used = 0

    def add(self, log: str) -> int:
        """Take a log along.

        Parameters
        ----------
        log : str
            A log; add those that matter most first.

        Returns
        -------
        int
            Its place in `texts`; -1 if it is empty or there is no room for it.
        """
        log = log.strip()
        if not log:
            return -1
        if log not in self._places:
            self._places[log] = self._keep(log)
        return self._places[log]

    def _keep(self, log: str) -> int:
        if self._used >= self._most:
            return -1
        text = excerpt(log, WHOLE if self._used < self._full else _TAIL)
        self._used += len(self._compressor.compress(text.encode("utf-8", "replace")))
        self._used += len(self._compressor.flush(zlib.Z_SYNC_FLUSH))
        self.texts.append(text)
        return len(self.texts) - 1


def excerpt(log: str, length: int = WHOLE) -> str:
    """Keep both ends of a long log: the beginning says what ran, the end what went wrong.

    Parameters
    ----------
    log : str
        A log. Colour codes are dropped from it.
    length : int
        Characters to keep.

    Returns
    -------
    str
        The log, with the number of characters that were left out in their place; so are the middles
        of very long lines.
    """
    log = _COLOUR.sub("", log)
    if len(log) > length:
        head = 0 if length <= _TAIL else length // 4
        left_out = len(log) - length
        notice = f"… {left_out:,} characters left out …"
        log = f"{log[:head]}\n{notice}\n{log[-(length - head) :]}".lstrip("\n")
    return "\n".join(map(_shorter, log.split("\n")))


def _shorter(row: str) -> str:
    if len(row) <= _ROW:
        return row
    half = _ROW // 2
    return f"{row[:half]} … {len(row) - 2 * half:,} characters left out … {row[-half:]}"
