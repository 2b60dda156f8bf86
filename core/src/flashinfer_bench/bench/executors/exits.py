"""Exit codes in words."""

from __future__ import annotations

import signal
from typing import Optional


def describe_exit(code: Optional[int]) -> str:
    """Say how a process ended.

    Parameters
    ----------
    code : int or None
        As of `subprocess.Popen.returncode`: negative for a signal, None when it is not known.

    Returns
    -------
    str
        Such as ``was killed by signal 11 (SIGSEGV)`` or ``exited with code 3``.
    """
    if code is None:
        return "ended for an unknown reason"
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "a real-time signal"
    remark = "; perhaps memory ran out" if -code == signal.SIGKILL else ""
    return f"was killed by signal {-code} ({name}{remark})"
