"""What a candidate may not ask of the system, whatever it has the right to."""

from __future__ import annotations

import ctypes
import errno
import socket
from typing import TYPE_CHECKING

from fib_sandbox_linux.filters import Instruction, Rule, assemble
from fib_sandbox_linux.system import Unavailable, call, machine

if TYPE_CHECKING:
    from collections.abc import Sequence

_SET_MODE_FILTER, _ALL_THREADS = 1, 1

_OTHER_PROCESSES = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp"),
    *("perf_event_open", "fanotify_init"),
)
_MOUNTS = (
    *("mount", "umount2", "pivot_root", "chroot", "open_tree", "open_tree_attr", "move_mount"),
    *("fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "setns", "unshare"),
    *("name_to_handle_at", "open_by_handle_at"),
)
_KERNEL = (
    *("bpf", "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load"),
    *("reboot", "iopl", "ioperm", "modify_ldt", "uselib", "syslog", "acct", "swapon", "swapoff"),
    *("quotactl", "quotactl_fd", "vhangup", "sethostname", "setdomainname"),
    *("add_key", "request_key", "keyctl"),
)
_CLOCKS = ("settimeofday", "clock_settime", "adjtimex", "clock_adjtime")
# Its operations pass by every filter. A page that answers only when its process does would keep
# those waiting who read the memory of a stopped process.
_WAYS_AROUND = ("io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd")

_NEW_NAMESPACES = 0x7E020000  # CLONE_NEW* of all kinds
_ASK_PERSONALITY = 0xFFFFFFFF
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
_EVERYONE = 0xFFFFFFFF  # -1

_LOCAL = (int(socket.AF_UNIX),)
# In a network namespace of its own these reach nobody.
_HARMLESS_IF_ALONE = (2, 10, 16)  # AF_INET, AF_INET6, AF_NETLINK


def rules(*, network_is_own: bool) -> tuple[Rule, ...]:
    """Return what is refused.

    Parameters
    ----------
    network_is_own : bool
        Whether the process has a network of its own, to which nothing is connected.
    """
    refused = (*_OTHER_PROCESSES, *_MOUNTS, *_KERNEL, *_CLOCKS, *_WAYS_AROUND)
    families = (*_LOCAL, *(_HARMLESS_IF_ALONE if network_is_own else ()))
    return (
        *(Rule(name, errno.EPERM) for name in refused),
        Rule("socket", errno.EPERM, "is not", 0, families),
        Rule("clone", errno.EPERM, "has", 0, (_NEW_NAMESPACES,)),
        # Its flags are behind a pointer; libraries then use the older call.
        Rule("clone3", errno.ENOSYS),
        Rule("personality", errno.EPERM, "is not", 0, (_ASK_PERSONALITY,)),
        # Its judge must be able to read its memory, and to end it with all that it has started:
        # nothing leaves the process group. Build tools and shells ask for groups, and are not
        # told that they do not get them.
        Rule("prctl", errno.EPERM, "is", 0, (_PR_SET_DUMPABLE,)),
        Rule("prctl", 0, "is", 0, (_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER)),
        Rule("setsid", 0),
        Rule("setpgid", 0),
        Rule("kill", errno.EPERM, "is", 0, (_EVERYONE,)),
        # Limits and priorities of others.
        Rule("prlimit64", errno.EPERM, "is not", 0, (0,)),
        Rule("sched_setscheduler", errno.EPERM, "is not", 0, (0,)),
        Rule("sched_setparam", errno.EPERM, "is not", 0, (0,)),
        Rule("sched_setattr", errno.EPERM, "is not", 0, (0,)),
        Rule("setpriority", errno.EPERM, "is not", 1, (0,)),
        Rule("ioprio_set", errno.EPERM, "is not", 1, (0,)),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("first", ctypes.POINTER(Instruction)))


def install(program: Sequence[Instruction]) -> None:
    """Put a filter on all threads of this process, for good.

    Raises
    ------
    Unavailable
        If the system does not take it.
    """
    array = (Instruction * len(program))(*program)
    pointer = ctypes.cast(array, ctypes.POINTER(Instruction))
    try:
        refusing = call("seccomp", _SET_MODE_FILTER, _ALL_THREADS, _Program(len(array), pointer))
    except OSError as error:
        raise Unavailable(f"the kernel takes no filter: {error}") from None
    if refusing:
        raise Unavailable(f"thread {refusing} already has another filter")


def filter_calls(*, network_is_own: bool) -> None:
    """Refuse the calls that no solution needs; see `rules`."""
    install(assemble(rules(network_is_own=network_is_own), machine()))
