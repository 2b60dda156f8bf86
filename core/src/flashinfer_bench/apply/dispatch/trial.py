"""Trying the checker of torch out, in a process of its own if need be, once for each torch.

What is not public may have changed in another release in a way that ends the process. Releases that
it is known to work with are tried out where it is used (`tensor_guards.problem_of`); with any other
one that is done in a child process first, and what came of it is kept in the cache.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.apply import disk

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

KNOWN_RELEASES = ("2.13",)
"""Releases of torch with which nothing goes wrong that could end the process."""

_ENABLING = ("FIB_ENABLE_APPLY", "FIB_ENABLE_TRACING")
_WITHIN_S = 120.0
_VERDICT = "verdict: "
# In isolated mode nothing of the folder that a program happens to be in is imported.
_START = (
    "import json, sys\n"
    "sys.path[:] = json.loads(sys.argv[1])\n"
    "from flashinfer_bench.apply.dispatch.trial import report\n"
    "report()\n"
)


def problem() -> Optional[str]:
    """Return why the checker of this torch may not even be tried out here; None if it may.

    With a release that is not known, the first process to ask starts another one and waits for it,
    for as long as importing torch takes.
    """
    import torch

    release = ".".join(torch.__version__.split(".")[:2])
    if release in KNOWN_RELEASES:
        return None
    path, purpose = _place()
    kept = disk.read(path, purpose)
    if kept is not None:
        return kept.decode() or None
    found, lasting = _asked(_run())
    if lasting:
        disk.write(path, purpose, (found or "").encode())
    return found


def _identity() -> list[str]:
    """Return all that an answer depends on."""
    import torch

    return [torch.__version__, str(torch.version.git_version), torch.__file__, sys.version]


def _place() -> tuple[Path, bytes]:
    """Return the file of an answer, and what is written there in front of it."""
    text = json.dumps([*_identity(), KNOWN_RELEASES]).encode()
    return disk.folder() / f"checker-{hashlib.sha256(text).hexdigest()[:24]}", text


def _run() -> tuple[Optional[int], str]:
    """Have another process `report`; return how it ended, None if it has not, and its output."""
    if not sys.executable or getattr(sys, "frozen", False):
        return None, "there is no interpreter to try it out with"
    quiet = {name: value for name, value in os.environ.items() if name not in _ENABLING}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _START, json.dumps(sys.path)],
            env=quiet,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return None, str(error)
    logger.debug("trying out the checker of torch: %s", done)
    return done.returncode, done.stdout.decode(errors="replace")


def _asked(ended: tuple[Optional[int], str]) -> tuple[Optional[str], bool]:
    """Return what another process found, and whether it would find that again."""
    status, text = ended
    lines = text.splitlines()
    if status is None or not lines or lines[0] != json.dumps(_identity()):
        return f"could not be tried out in another process: {text or 'it did not start'}", False
    last = lines[-1]
    if status == 0 and last.startswith(_VERDICT):
        found: Any = json.loads(last.removeprefix(_VERDICT))
        return found, True
    return f"ended the process that tried it out (exit status {status})", True


def report() -> None:
    """Try the checker out in this process, and print what came of it."""
    from flashinfer_bench.apply.dispatch.tensor_guards import problem_of

    _leave_no_core()
    _say(json.dumps(_identity()))
    try:
        from torch._C._dynamo.guards import TensorGuards
    except ImportError as error:
        found: Optional[str] = f"is missing: {error}"
    else:
        found = problem_of(TensorGuards)
    _say(_VERDICT + json.dumps(found))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()  # the process may end at once


def _leave_no_core() -> None:
    try:
        import resource
    except ImportError:  # not on this system
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
