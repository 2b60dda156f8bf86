"""Log lines on stderr; set up by commands only, never by importing the package."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Optional, TextIO

from flashinfer_bench import env
from flashinfer_bench.cli.output import printable
from flashinfer_bench.errors import ConfigError

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        # Messages may quote what a dataset says, or what a solution printed.
        lines = super().format(record).split("\n")
        return "\n".join(printable(line) for line in lines)


if TYPE_CHECKING:
    _TextHandler = logging.StreamHandler[TextIO]
else:  # cannot be subscripted before Python 3.11
    _TextHandler = logging.StreamHandler


class StderrHandler(_TextHandler):
    """Writes to whatever stderr is at the time, which a progress bar replaces while it is drawn."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(_Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        self.stream = sys.stderr
        super().emit(record)


def set_up_logging(level: Optional[str] = None, *, default: str = "WARNING") -> str:
    """Send log records of at least `level` to stderr.

    Parameters
    ----------
    level : str, optional
        Value of ``--log-level``; else ``FIB_LOG_LEVEL``, else `default`.
    default : str
        What the command shows unless it is told otherwise.

    Returns
    -------
    str
        The level that holds.

    Raises
    ------
    ConfigError
        If there is no such level.
    """
    chosen = (level or env.log_level() or default).strip().upper()
    if chosen not in LEVELS:
        raise ConfigError(f"there is no log level {chosen!r}; allowed are {', '.join(LEVELS)}")
    root = logging.getLogger()
    if not any(isinstance(handler, StderrHandler) for handler in root.handlers):
        root.addHandler(StderrHandler())
    logging.getLogger("flashinfer_bench").setLevel(chosen)
    return chosen
