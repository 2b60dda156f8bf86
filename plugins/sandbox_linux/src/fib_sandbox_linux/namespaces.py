"""Namespaces: an isolated network, and a read-only view of the file system.

Both require a privilege. A process without it obtains it in its own user namespace, and drops it
again afterwards.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fib_sandbox_linux.system import Unavailable, call

if TYPE_CHECKING:
    from collections.abc import Iterable

_NEW_MOUNTS, _NEW_IPC, _NEW_USERS, _NEW_NETWORK = 0x20000, 0x08000000, 0x10000000, 0x40000000

_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 0x1, 0x2, 0x4
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_AT_FDCWD, _AT_RECURSIVE, _ATTR_READ_ONLY = -100, 0x8000, 0x1

_SHARED_MEMORY = Path("/dev/shm")
# A client of one of these services acts with the rights of another program. Sockets that are files
# remain reachable for processes that can read everything.
_SERVICES = (
    *("/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock"),
    *("/run/crio/crio.sock", "/run/dbus/system_bus_socket", "/run/systemd/private"),
)


def _leave(flags: int, what: str) -> None:
    """Create new namespaces, with a user namespace if necessary."""
    try:
        call("unshare", flags)
    except PermissionError as error:
        _leave_users(flags, what, error)
    except OSError as error:
        raise Unavailable(f"{what}: {error}") from None


def _leave_users(flags: int, what: str, refusal: OSError) -> None:
    user, group = os.geteuid(), os.getegid()
    try:
        call("unshare", flags | _NEW_USERS)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            Path("/proc/self", name).write_text(text)
    except OSError as error:
        reason = f"{what}: {refusal.strerror}; with a user namespace: {error.strerror}"
        raise Unavailable(reason) from None


def leave_network() -> None:
    """Move to an isolated network, and to private shared memory.

    Not even its own address 127.0.0.1 is reachable there.
    """
    _leave(_NEW_NETWORK | _NEW_IPC, "no network namespace can be created")


def leave_mounts(
    writable: Iterable[Path], *, shared_bytes: int, hidden: Iterable[Path] = ()
) -> None:
    """Make all files read-only except those in `writable`, and hide those in `hidden`.

    Unlike Landlock this also protects owners, modes and times of files. Afterwards ``/dev/shm`` is
    private, and sockets of privileged services are hidden.

    Parameters
    ----------
    writable : iterable of Path
        Folders; missing ones are ignored.
    shared_bytes : int
        Size of ``/dev/shm``.
    hidden : iterable of Path
        Folders, which become empty, and files, which become ``/dev/null``.
    """
    _leave(_NEW_MOUNTS, "no mount namespace can be created")
    try:
        call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
        folders = [path for path in dict.fromkeys(writable) if path.is_dir()]
        _set_read_only(Path("/"), True, _AT_RECURSIVE)
        for folder in folders:
            _bind(folder, folder)
            _set_read_only(folder, False)
        for path in (*hidden, *map(Path, _SERVICES)):
            with suppress(FileNotFoundError):
                _hide(path)
        if _SHARED_MEMORY.is_dir():
            _mount_memory(_SHARED_MEMORY, f"size={shared_bytes},mode=1777")
        os.chdir(Path.cwd())  # the old directory is hidden below the new mount
    except OSError as error:
        raise Unavailable(f"files cannot be mounted read-only: {error}") from None


class _Attributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "users"))


def _set_read_only(folder: Path, value: bool, flags: int = 0) -> None:
    change = _Attributes(**{"set" if value else "clear": _ATTR_READ_ONLY})
    try:
        call("mount_setattr", _AT_FDCWD, os.fsencode(folder), flags, change, ctypes.sizeof(change))
    except OSError as error:
        if error.errno == errno.ENOSYS:
            raise Unavailable("mounting all files read-only needs Linux 5.12") from None
        raise


def _bind(source: Path, target: Path) -> None:
    call("mount", os.fsencode(source), os.fsencode(target), None, _MS_BIND, None)


def _hide(path: Path) -> None:
    if path.is_dir():
        _mount_memory(path, "size=4k,mode=555", _MS_RDONLY)
    else:
        _bind(Path(os.devnull), path)


def _mount_memory(folder: Path, options: str, flags: int = 0) -> None:
    flags |= _MS_NOSUID | _MS_NODEV
    call("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", flags, options.encode())
