"""The exit codes of ``fib``, the same for every command."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of ``fib``.

    A solution that fails is a *result* of a benchmark, not an error: ``fib run`` exits with `OK` if
    every evaluation was carried out, unless ``--strict`` asks for `FINDINGS`.
    """

    OK = 0
    """Done, without findings."""

    FINDINGS = 1
    """Something is wrong with the data: an invalid record, two datasets that disagree, a broken
    plugin, a trace that could not be reproduced, a failed solution under ``--strict``.
    """

    USAGE = 2
    """The command line is not valid: unknown option, name or folder, value out of range."""

    INTERNAL = 3
    """A bug in ``fib``; please report it with the traceback (``FIB_TRACEBACK=1``)."""

    CAPABILITY = 4
    """The machine or environment lacks something: a device, a library, a plugin, disk space, or
    what is needed to repeat a trace."""

    NOTHING_SELECTED = 5
    """The filters, or an empty dataset, leave nothing to do."""

    AMBIGUOUS = 6
    """``fib compare`` could not decide within the time limit whether a solution is slower."""

    INTERRUPTED = 130
    """Ctrl-C; everything recorded so far is kept."""

    BROKEN_PIPE = 141
    """The reader of the output closed it, as in ``fib report best | head -1``."""
