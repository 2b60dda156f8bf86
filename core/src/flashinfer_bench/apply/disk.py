"""Small files in the cache folder that may be lost, damaged or foreign at any time.

A file begins with a line that names its format, the digest of the rest, and what it is for. It is
believed only if all of that fits: anything else is the same as no file. Writing is atomic, so that
readers and other writers never meet a part; where it fails, things are slower, and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Optional, Union

from flashinfer_bench import env

_logger = logging.getLogger(__name__)

MAGIC = b"flashinfer-bench apply 1\n"
"""Names the format; another number for another one."""

_DIGEST = 32
_MOST_FILES = 64
_ABANDONED_S = 3600.0


def folder() -> Path:
    """Return the folder of these files, which need not exist."""
    return env.cache_path() / "apply"


def read(path: Path, purpose: bytes) -> Optional[bytes]:
    """Return what `write` has written for a purpose, None if there is nothing to be relied on.

    Parameters
    ----------
    path : Path
        The file.
    purpose : bytes
        As it was given to `write`.
    """
    try:
        data = path.read_bytes()
    except OSError:
        return None
    start = len(MAGIC) + _DIGEST
    digest, rest = data[len(MAGIC) : start], memoryview(data)[start:]
    if not (data.startswith(MAGIC) and _digest(rest) == digest and data.startswith(purpose, start)):
        _logger.info("%s: not usable, made anew", path)
        return None
    return data[start + len(purpose) :]


def write(path: Path, purpose: bytes, payload: bytes) -> bool:
    """Write a file; return whether that was possible.

    Parameters
    ----------
    path : Path
        The file; its folder is made if need be.
    purpose : bytes
        What the content is for, which the name may only abbreviate.
    payload : bytes
        The content.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines((MAGIC, _digest(purpose, payload), purpose, payload))
        # Not synced: what a crash of the machine damages is found out by the digest.
        Path(temporary).replace(path)
    except OSError as error:
        _logger.debug("%s: not written: %s", path, error)
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        return False
    _prune(path.parent)
    return True


def _digest(*parts: Union[bytes, memoryview]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def _prune(where: Path) -> None:
    """Remove the oldest files beyond a number, and what killed processes left behind."""
    whole: list[tuple[float, Path]] = []
    with contextlib.suppress(OSError):
        for path in list(where.iterdir()):
            with contextlib.suppress(OSError):  # another process may have removed it
                changed = path.stat().st_mtime
                if not path.name.startswith("."):
                    whole.append((changed, path))
                elif changed < time.time() - _ABANDONED_S:
                    path.unlink()
    for _, path in sorted(whole, reverse=True)[_MOST_FILES:]:
        with contextlib.suppress(OSError):
            path.unlink()
