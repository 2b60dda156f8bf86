"""What dead processes leave behind: soft locks, temporary files, torn lines put aside."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.data import layout
from flashinfer_bench.data.repair.blobs import is_young
from flashinfer_bench.data.repair.issues import Issue, Kind, issue
from flashinfer_bench.data.storage import SOFT_LOCK_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDERS = (layout.DEFINITIONS, layout.SOLUTIONS, layout.WORKLOADS, layout.TRACES, layout.BLOB)
_TEMPORARY = re.compile(r"\.(.+)\.[a-z0-9_]{8}")  # as `replace_file` names them
_NO_TEMPORARY = (".lock", SOFT_LOCK_SUFFIX)


def find_leftovers(root: Path) -> Iterator[Issue]:
    """Yield what dead processes have left in the folders of a dataset.

    Lock files of ``flock`` are none: they are meant to stay, and say nothing about a process.
    """
    for folder in FOLDERS:
        for path in _all_files(root / folder):
            found = _judge(path, path.relative_to(root))
            if found is not None:
                yield found


def _all_files(folder: Path) -> Iterator[Path]:
    """Yield files and links. What cannot be listed is told by those who read these folders."""
    top = os.fspath(folder)
    found = layout.entries(top, hidden=True, on_error=lambda _: None)
    yield from map(Path, sorted(one.path for one in found if not one.is_dir(follow_symlinks=False)))


def _judge(path: Path, relative: Path) -> Optional[Issue]:
    name = path.name
    # Not pathlib, which raises if a path is too long.
    if os.path.islink(path) and name[0] != "." and not os.path.exists(path):  # noqa: PTH110, PTH114
        return issue(Kind.UNREADABLE, relative, "this link leads nowhere")
    if name.endswith(".torn"):
        return issue(Kind.TORN_FILE, relative, "holds unfinished lines that appends put aside")
    if name.startswith(".") and name.endswith(SOFT_LOCK_SUFFIX):
        return _judge_lock(path, relative)
    if _TEMPORARY.fullmatch(name) and not name.endswith(_NO_TEMPORARY) and not is_young(path):
        return issue(Kind.LEFTOVER, relative, "a temporary file whose writer never finished it")
    return None


def _judge_lock(path: Path, relative: Path) -> Optional[Issue]:
    owner = lock_owner(path)
    if owner is None:  # being written just now, or by something else
        if is_young(path):
            return None
        return issue(Kind.STALE_LOCK, relative, "a lock of more than an hour that names no owner")
    pid, host = owner
    if host == socket.gethostname():
        if _is_alive(pid):
            return None
        return issue(Kind.STALE_LOCK, relative, f"a lock of process {pid}, which is gone")
    if is_young(path):
        return None
    message = f"a lock that process {pid} of {host} has held for more than an hour"
    return issue(Kind.STALE_LOCK, relative, message, hint="an append holds it for milliseconds")


def is_stale(path: Path) -> bool:
    """Return whether a soft lock is held by nobody any more."""
    return _judge_lock(path, path) is not None


def lock_owner(path: Path) -> Optional[tuple[int, str]]:
    """Return process and host of a soft lock, or None if it does not say."""
    try:
        lines = path.read_bytes()[:1024].decode().split("\n")
        return int(lines[0]), lines[1]
    except (OSError, ValueError, IndexError):
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
