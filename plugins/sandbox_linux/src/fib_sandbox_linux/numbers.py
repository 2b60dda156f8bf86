"""System call numbers, by instruction set.

From ``arch/x86/entry/syscalls/syscall_64.tbl`` and ``include/uapi/asm-generic/unistd.h`` of Linux.
"""

from __future__ import annotations

# Each with its number on x86_64 and on aarch64; "-" if it does not exist there.
_ABOUT_OTHER_PROCESSES = """
    ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, pidfd_getfd 438 438,
    kcmp 312 272, perf_event_open 298 241, fanotify_init 300 262
"""
_MOUNTS = """
    mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, open_tree 428 428,
    open_tree_attr 467 467, move_mount 429 429, fsopen 430 430, fsconfig 431 431, fsmount 432 432,
    fspick 433 433, mount_setattr 442 442, setns 308 268, unshare 272 97, name_to_handle_at 303 264,
    open_by_handle_at 304 265
"""
_KERNEL = """
    bpf 321 280, init_module 175 105, finit_module 313 273, delete_module 176 106,
    kexec_load 246 104, kexec_file_load 320 294, reboot 169 142, iopl 172 -, ioperm 173 -,
    modify_ldt 154 -, uselib 134 -, syslog 103 116, acct 163 89, swapon 167 224, swapoff 168 225,
    quotactl 179 60, quotactl_fd 443 443, vhangup 153 58, sethostname 170 161,
    setdomainname 171 162, add_key 248 217, request_key 249 218, keyctl 250 219
"""
_CLOCKS = """
    settimeofday 164 170, clock_settime 227 112, adjtimex 159 171, clock_adjtime 305 266
"""
# io_uring operations bypass every filter. With userfaultfd, a page that is served only while its
# process runs could block a reader of the memory of a stopped process.
_WAYS_AROUND = """
    io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427, userfaultfd 323 282
"""
_OTHERS = """
    socket 41 198, clone 56 220, kill 62 129, setpgid 109 154, setsid 112 157, capset 126 91,
    personality 135 92, setpriority 141 140, sched_setparam 142 118, sched_setscheduler 144 119,
    sched_setaffinity 203 122, sched_setattr 314 274, prctl 157 167, ioprio_set 251 30,
    prlimit64 302 261, seccomp 317 277, clone3 435 435, landlock_create_ruleset 444 444,
    landlock_add_rule 445 445, landlock_restrict_self 446 446
"""


def _read(table: str) -> dict[str, tuple[str, ...]]:
    rows = [row.split() for row in table.split(",")]
    return {name: tuple(numbers) for name, *numbers in rows}


_REFUSED = _read(",".join((_ABOUT_OTHER_PROCESSES, _MOUNTS, _KERNEL, _CLOCKS, _WAYS_AROUND)))

REFUSED = tuple(_REFUSED)
"""Names of the system calls that no solution needs, whatever their arguments."""

NUMBERS = {
    machine: {
        name: int(numbers[place])
        for name, numbers in {**_REFUSED, **_read(_OTHERS)}.items()
        if numbers[place] != "-"
    }
    for place, machine in enumerate(("x86_64", "aarch64"))
}
"""Numbers by instruction set and name."""
