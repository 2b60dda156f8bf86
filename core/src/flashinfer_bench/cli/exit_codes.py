"""The exit codes of ``fib``, the same for every command."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the exit status of ``fib`` means.

    A solution that fails is a *result* of a benchmark, not an error of it: ``fib run`` exits with
    `OK` when every evaluation was carried out, unless ``--strict`` asks for `FINDINGS`.
    """

    OK = 0
    """Done, and nothing to report."""

    FINDINGS = 1
    """Done or stopped, and something is wrong with the data: an invalid record, two datasets that
    disagree, a broken plugin, a trace that no longer holds, a failed solution under ``--strict``.
    """

    USAGE = 2
    """The command line is not allowed: unknown option, name or folder, value out of range."""

    INTERNAL = 3
    """A bug of ours; please report it with the traceback (``FIB_TRACEBACK=1``)."""

    CAPABILITY = 4
    """The machine or environment lacks something: a device, a library, a plugin, disk space, or
    what it takes to repeat a trace."""

    NOTHING_SELECTED = 5
    """The filters, or an empty dataset, leave nothing to do."""

    AMBIGUOUS = 6
    """``fib compare`` could not tell in the time given whether a solution is slower."""

    INTERRUPTED = 130
    """Ctrl-C; what had been recorded until then is kept."""

    BROKEN_PIPE = 141
    """The reader of our output went away, as in ``fib report best | head -1``."""
