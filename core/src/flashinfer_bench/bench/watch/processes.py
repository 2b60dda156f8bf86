"""Which processes descend from which, read from ``/proc``."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

_PROC = Path("/proc")
_DEEPEST = 64
_AFTER_NAME_PARENT = 1  # the fields after the name are: state, parent, …


def exists(pid: int) -> bool:
    """Return whether a process of that number can be seen from here."""
    return (_PROC / str(pid)).exists()


def belongs_to(pid: int, ancestor: int) -> bool:
    """Return whether `pid` is `ancestor` or descends from it."""
    current: Optional[int] = pid
    for _ in range(_DEEPEST):
        if current == ancestor:
            return True
        if not current:
            return False
        current = _parent(current)
    return False


def _parent(pid: int) -> Optional[int]:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
        # The name stands in brackets and may hold anything, brackets and blanks included.
        return int(text.rpartition(")")[2].split()[_AFTER_NAME_PARENT])
    except (OSError, ValueError, IndexError):
        return None
