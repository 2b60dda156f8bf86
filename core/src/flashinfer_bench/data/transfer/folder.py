"""Writing a folder as a whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from flashinfer_bench.data.storage import sync_folder
from flashinfer_bench.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from flashinfer_bench.data.transfer.items import Item


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Give a hidden folder beside `out`, which becomes `out` if the block ends well.

    Parameters
    ----------
    out : Path
        A folder that does not exist, or is empty.

    Yields
    ------
    Path
        The folder to fill.

    Raises
    ------
    StorageError
        If `out` is anything else, or cannot be made. It is then as it was before.
    """
    require_empty(out)
    final = out.resolve()
    filling = _hidden_folder(final)
    try:
        yield filling
        try:
            sync_tree(filling)
            filling.rename(final)  # over an empty folder, too
        except OSError as error:
            raise write_error(out, error) from error
        sync_folder(final.parent)
    finally:
        shutil.rmtree(filling, ignore_errors=True)


def require_empty(out: Path) -> None:
    """Refuse a place where something is already.

    Raises
    ------
    StorageError
        If `out` exists and is not an empty folder.
    """
    there = out.is_symlink() or out.exists()
    if there and (not out.is_dir() or any(out.iterdir())):
        raise StorageError(f"{out}: not an empty folder", hint="name a new folder")


def _hidden_folder(final: Path) -> Path:
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.mkdtemp(prefix=f".{final.name[:100]}.", suffix=".partial", dir=final.parent)
        mask = os.umask(0)
        os.umask(mask)
        folder = Path(made)
        folder.chmod(0o777 & ~mask)  # as mkdir would have made it
    except OSError as error:
        raise write_error(final, error) from error
    return folder


def write_items(folder: Path, items: Iterable[Item], *, link: bool = False) -> None:
    """Write files into a folder that nobody reads yet.

    Parameters
    ----------
    folder : Path
        The folder.
    items : iterable of Item
        The files.
    link : bool
        Whether the files to copy are about to be removed, so that a second name is as good.

    Raises
    ------
    StorageError
        If it cannot be done.
    """
    for item in items:
        target = folder / item.path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if not isinstance(item.content, Path):
                target.write_bytes(item.content())
        except OSError as error:
            raise write_error(target, error) from error
        if isinstance(item.content, Path):
            if link:
                with contextlib.suppress(OSError):  # another file system, or one without links
                    os.link(item.content, target)
                    continue
            copy_file(item.content, target)


def copy_file(source: Path, target: Path) -> None:
    """Copy the content of a file.

    Raises
    ------
    StorageError
        If it cannot be done.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    except OSError as error:
        raise StorageError(f"{target}: cannot copy {source}: {error}") from error


def place_file(source: Path, target: Path) -> None:
    """Copy a file into a folder that others read: they see all of it, or nothing.

    Raises
    ------
    StorageError
        If it cannot be done; a file that was there is unchanged.
    """
    hidden = target.with_name(f".{target.name[:100]}.{os.getpid()}.part")
    try:
        copy_file(source, hidden)
        with hidden.open("rb") as file:
            os.fsync(file.fileno())
        hidden.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            hidden.unlink()
        raise error if isinstance(error, StorageError) else write_error(target, error) from error


def sync_tree(folder: Path) -> None:
    """Make all files below a folder durable; at the end, in one go, that costs least.

    Raises
    ------
    OSError
        If a file cannot be written out.
    """
    for current, _, names in os.walk(folder, topdown=False):
        for name in names:
            descriptor = os.open(Path(current, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(Path(current))


def write_error(path: Path, error: OSError) -> StorageError:
    """Return the error to raise where writing failed."""
    made = StorageError(
        f"{path}: cannot write: {error.strerror or error}",
        hint="another process has made it meanwhile; retry"
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST)
        else "free some space or check the permissions, then retry",
    )
    made.errno = error.errno
    return made
