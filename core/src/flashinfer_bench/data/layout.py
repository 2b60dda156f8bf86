"""The layout of a dataset folder."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.errors import DatasetNotFoundError, SelectionError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_logger = logging.getLogger(__name__)

DEFINITIONS = "definitions"
SOLUTIONS = "solutions"
WORKLOADS = "workloads"
TRACES = "traces"
BLOB = "blob"
FOLDERS = (DEFINITIONS, SOLUTIONS, WORKLOADS, TRACES, BLOB)


_UNSAFE = re.compile(r"[^\w.@+=, -]|^[. ]|[. ]$", re.ASCII)
_MAX_SEGMENT = 180


def require_folder(root: Path) -> None:
    """Check that the folder of a dataset exists and can be read.

    Raises
    ------
    DatasetNotFoundError
        If there is no such folder.
    StorageError
        If it cannot be read.
    """
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "does not exist"
        raise no_dataset(f"{root} {what}")
    if not os.access(root, os.R_OK | os.X_OK):
        raise StorageError(f"{root} cannot be read", hint="change its permissions")


def no_dataset(reason: str) -> DatasetNotFoundError:
    """Return the error for a dataset that is not there."""
    hint = "name a dataset folder, as an argument or with --local; or run this inside one, or set "
    hint += "FIB_DATASET_PATH; 'fib init DIR' creates a dataset"
    return DatasetNotFoundError(f"no dataset: {reason}", hint=hint)


def require_dataset(root: Path) -> None:
    """Check that a folder is a dataset.

    Raises
    ------
    DatasetNotFoundError
        If there is no such folder.
    SelectionError
        If it has none of the folders of a dataset: probably another one was meant.
    """
    require_folder(root)
    if not any(os.path.lexists(root / folder) for folder in FOLDERS):
        raise empty_dataset(str(root))


def empty_dataset(name: str) -> SelectionError:
    """Return the error for a dataset without any records."""
    hint = f"a dataset has the folders {', '.join(FOLDERS)}; 'fib init DIR' creates one"
    return SelectionError(f"the dataset {name} is empty", hint=hint)


def safe_segment(name: str) -> str:
    """Turn a name into one path segment.

    Names such as published datasets have are unchanged. Characters that could change the meaning of
    the path (separators, a leading or trailing dot or space, control and non-ASCII characters) are
    percent-encoded, so that different names give different segments. A very long name is cut and
    ends in a digest.

    Parameters
    ----------
    name : str
        Name of a definition, author, solution or op type.

    Returns
    -------
    str
        A single, visible, non-empty segment.
    """
    segment = _UNSAFE.sub(_percent, name) or "%00"
    if len(segment) <= _MAX_SEGMENT:
        return segment
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{segment[: _MAX_SEGMENT - 17]}%{digest}"


def _percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))


def definition_file(root: Path, op_type: str, name: str) -> Path:
    """Return ``definitions/<op_type>/<name>.json``."""
    return root / DEFINITIONS / safe_segment(op_type) / f"{safe_segment(name)}.json"


def solution_file(root: Path, author: str, op_type: str, definition: str, name: str) -> Path:
    """Return ``solutions/<author>/<op_type>/<definition>/<name>.json``."""
    folder = root.joinpath(SOLUTIONS, *map(safe_segment, (author, op_type, definition)))
    return folder / f"{safe_segment(name)}.json"


def traces_file(root: Path, op_type: str, definition: str) -> Path:
    """Return ``traces/<op_type>/<definition>.jsonl``."""
    return root / TRACES / safe_segment(op_type) / f"{safe_segment(definition)}.jsonl"


def workloads_file(root: Path, op_type: str, definition: str) -> Path:
    """Return ``workloads/<op_type>/<definition>.jsonl``."""
    return root / WORKLOADS / safe_segment(op_type) / f"{safe_segment(definition)}.jsonl"


def blob_file(root: Path, op_type: str, definition: str, uuid: str) -> Path:
    """Return ``blob/workloads/<op_type>/<definition>/<definition>_<uuid>.safetensors``."""
    folder = root / BLOB / WORKLOADS / safe_segment(op_type) / safe_segment(definition)
    return folder / f"{safe_segment(f'{definition}_{uuid}')}.safetensors"


def files(
    folder: Path, *suffixes: str, on_error: Optional[Callable[[OSError], None]] = None
) -> list[Path]:
    """Return the files below a folder with one of these suffixes, sorted.

    Hidden files and folders are left out. Links to folders are followed, each folder once. Files
    that are deleted in the meantime are left out, as are broken links, with a warning.

    Parameters
    ----------
    folder : Path
        The folder; one that does not exist has no files.
    suffixes : str
        Ends of their names.
    on_error : callable, optional
        Called with the error of each folder that cannot be listed; the others are still listed. By
        default the first error is raised.

    Raises
    ------
    OSError
        If a folder cannot be listed: ignoring it would silently lose its files.
    """
    top = os.fspath(folder)
    found = entries(top, follow=True, on_error=on_error) if os.path.lexists(top) else ()
    names = [entry.path for entry in found if entry.name.endswith(suffixes) and _is_file(entry)]
    return list(map(Path, sorted(names)))


def entries(
    top: str,
    *,
    hidden: bool = False,
    follow: bool = False,
    on_error: Optional[Callable[[OSError], None]] = None,
) -> Iterator[os.DirEntry[str]]:
    """Yield the files and folders below a folder, at any depth.

    Parameters
    ----------
    top : str
        The folder.
    hidden : bool
        Whether names that begin with a dot are included.
    follow : bool
        Whether links to folders are followed, each folder once.
    on_error : callable, optional
        As for `files`.

    Raises
    ------
    OSError
        As for `files`.
    """
    seen: set[tuple[int, int]] = set()
    folders = [top]
    while folders:  # no recursion: folders may be nested deeper than Python's limit
        folder = folders.pop()
        try:
            if follow:
                info = Path(folder).stat()
                if (info.st_dev, info.st_ino) in seen:
                    continue
                seen.add((info.st_dev, info.st_ino))
            with os.scandir(folder) as found:  # several times faster than pathlib
                inner = list(found)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and folder != top:
                continue  # deleted in the meantime
            if on_error is None:
                raise
            on_error(error)
            continue
        for entry in inner:
            if hidden or not entry.name.startswith("."):
                with contextlib.suppress(OSError):  # a link to itself, or no permission
                    if entry.is_dir(follow_symlinks=follow):
                        folders.append(entry.path)
                yield entry


def _is_file(entry: os.DirEntry[str]) -> bool:
    with contextlib.suppress(OSError):
        if entry.is_file() or entry.is_dir() or not entry.is_symlink():
            return entry.is_file()
    _logger.warning("%s: left out: broken link", entry.path)
    return False
