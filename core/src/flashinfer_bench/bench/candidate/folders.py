"""Removing whatever a solution has left in its folder."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from uuid import uuid4

logger = logging.getLogger(__name__)


def remove_folder(folder: Path) -> None:
    """Remove `folder` and everything in it; never raises. No process may work in it any more.

    Folders nested deeper than Python recurses, or than a path can be long, are no obstacle: each
    folder is emptied upwards. Links are removed, never followed.

    Parameters
    ----------
    folder : Path
        An existing folder, or not.
    """
    try:
        folder.rmdir()  # nearly always empty
        return
    except FileNotFoundError:
        return
    except OSError:
        pass
    try:
        while inner := _remove_files(folder):
            for path in inner:
                _empty_upwards(path, folder)
        folder.rmdir()
    except OSError as error:
        logger.warning("%s cannot be removed: %s", folder, error)


def _remove_files(folder: Path) -> list[Path]:
    """Remove all files of `folder`, and return the folders in it."""
    with contextlib.suppress(OSError):
        folder.chmod(0o700)
    inner = []
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                inner.append(Path(entry.path))
            else:
                os.unlink(entry.path)  # noqa: PTH108 - the entry's path is a string
    return inner


def _empty_upwards(path: Path, top: Path) -> None:
    """Move the folders in `path` up to `top` and remove it."""
    for inner in _remove_files(path):
        inner.rename(top / uuid4().hex)
    path.rmdir()
