"""Being alone: most of what a process gives up, each of its threads has to give up for itself."""

from __future__ import annotations

import os
import warnings

from flashinfer_bench.bench.candidate.processes import thread_count


def end_idle_threads() -> int:
    """Have libraries that keep threads, such as numpy's, end them; they start new ones later.

    Returns
    -------
    int
        How many other threads there are nevertheless.
    """
    if thread_count() == 1:
        return 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is the point
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return thread_count() - 1
