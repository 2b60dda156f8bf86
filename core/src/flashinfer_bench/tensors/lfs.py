"""Fetching files that a git clone holds only as Git-LFS pointers."""

from __future__ import annotations

import logging
import shutil
import subprocess
from typing import TYPE_CHECKING

from flashinfer_bench.data.blobs import is_lfs_pointer
from flashinfer_bench.errors import BlobError

if TYPE_CHECKING:
    from pathlib import Path

PULL_TIMEOUT_S = 600.0
"""Seconds after which a pull is given up."""

logger = logging.getLogger(__name__)


def fetch_if_pointer(path: Path) -> None:
    """Replace a Git-LFS pointer by the file that it stands for; leave any other file alone.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    BlobError
        If it is a pointer and git-lfs is not installed or cannot fetch it.
    """
    if not is_lfs_pointer(path):
        return
    if shutil.which("git") is None or shutil.which("git-lfs") is None:
        raise _pointer_error(path, "and git-lfs is not installed")
    logger.info("pulling %s with git-lfs", path)
    problem = _pull(path)
    if problem:
        raise _pointer_error(path, f"and git-lfs could not fetch it: {problem}")
    if is_lfs_pointer(path):
        raise _pointer_error(path, "and git-lfs left it as it is")


def _pull(path: Path) -> str:
    """Run git-lfs for this one file; return what went wrong, or an empty string."""
    # "*" and the like in a file name would be a pattern to git-lfs.
    pattern = "".join(f"\\{char}" if char in "*?[]\\" else char for char in path.name)
    command = ["git", "lfs", "pull", "--include", f"**/{pattern}", "--exclude", ""]
    try:
        done = subprocess.run(
            command,
            cwd=path.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PULL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {PULL_TIMEOUT_S:g} s"
    except OSError as error:
        return str(error)
    if done.returncode == 0:
        return ""
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def _pointer_error(path: Path, why: str) -> BlobError:
    return BlobError(
        f"the file is a Git-LFS pointer, not the tensors themselves, {why}",
        path=path,
        hint=f"Install git-lfs and run: git lfs pull --include '**/{path.name}'",
    )
