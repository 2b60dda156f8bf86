"""Restrict the system calls of a candidate, regardless of its other rights."""

from __future__ import annotations

import ctypes
import errno
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fib_sandbox_linux.numbers import NUMBERS, REFUSED
from fib_sandbox_linux.system import Unavailable, call, machine

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


# Seccomp filters: programs of the classic Berkeley packet filter.
#
# A filter sees the number of a call, and its arguments as plain numbers: it cannot follow pointers.
# See https://docs.kernel.org/userspace-api/seccomp_filter.html.


ALLOW = 0x7FFF0000
ERRNO = 0x00050000  # the error's number is in the lower half; 0 stands for success
KILL_PROCESS = 0x80000000

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""How the instruction set is identified to a filter."""

_X32_CALLS = 0x40000000  # the x32 ABI: other numbers on the same machine

LOAD, JUMP_EQUAL, JUMP_NOT_LESS, JUMP_ANY_BIT, JUMP, RETURN = 0x20, 0x15, 0x35, 0x45, 0x05, 0x06
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16


class Instruction(ctypes.Structure):
    """One BPF instruction: operation, jumps for a true or false condition, and a constant."""

    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("constant", ctypes.c_uint32),
    )


@dataclass(frozen=True)
class Rule:
    """What happens to a call.

    Parameters
    ----------
    name : str
        Name of the call; rules for calls that the machine does not have are dropped.
    error : int
        Error number to return instead of making the call; 0 simulates success.
    when : str
        ``always``; or if the argument ``is`` one of the values, ``is not`` any of them, or ``has``
        a bit of one of them set.
    argument : int
        Index of the argument, of which the lower 32 bits are compared.
    values : tuple of int
        The values to compare with.
    """

    name: str
    error: int
    when: Literal["always", "is", "is not", "has"] = "always"
    argument: int = 0
    values: tuple[int, ...] = ()


def assemble(rules: Iterable[Rule], machine: str) -> list[Instruction]:
    """Return a program that applies `rules` and allows everything else.

    Parameters
    ----------
    rules : iterable of Rule
        The first matching rule is applied.
    machine : str
        Instruction set, as in `NUMBERS`. Calls through another ABI end the process, because their
        numbers differ.
    """
    program = [
        Instruction(LOAD, 0, 0, _ARCH_AT),
        Instruction(JUMP_EQUAL, 1, 0, AUDIT_ARCH[machine]),
        Instruction(RETURN, 0, 0, KILL_PROCESS),
        Instruction(LOAD, 0, 0, _NUMBER_AT),
    ]
    if machine == "x86_64":
        program += [
            Instruction(JUMP_NOT_LESS, 0, 1, _X32_CALLS),
            Instruction(RETURN, 0, 0, KILL_PROCESS),
        ]
    for rule in rules:
        number = NUMBERS[machine].get(rule.name)
        if number is not None:
            block = _block(rule)
            program += [Instruction(JUMP_EQUAL, 0, len(block), number), *block]
    return [*program, Instruction(RETURN, 0, 0, ALLOW)]


def _block(rule: Rule) -> list[Instruction]:
    """Return the instructions for a matching call number; the number is loaded again at the end."""
    refuse = Instruction(RETURN, 0, 0, ERRNO | rule.error)
    if rule.when == "always":
        return [refuse]
    return [
        Instruction(LOAD, 0, 0, _ARGUMENTS_AT + 8 * rule.argument),
        *_tests(rule),
        refuse,
        Instruction(LOAD, 0, 0, _NUMBER_AT),
    ]


def _tests(rule: Rule) -> list[Instruction]:
    """Return comparisons that skip the next instruction, the refusal, unless the rule applies."""
    code = JUMP_ANY_BIT if rule.when == "has" else JUMP_EQUAL
    last = len(rule.values) - 1
    found = [
        Instruction(code, last - index + 1, 0, value) for index, value in enumerate(rule.values)
    ]
    return found if rule.when == "is not" else [*found, Instruction(JUMP, 0, 0, 1)]


_SET_MODE_FILTER, _ALL_THREADS = 1, 1

_NEW_NAMESPACES = 0x7E020000  # CLONE_NEW* all kinds
_SIBLING = 0x8000  # CLONE_PARENT: makes a child of the fork server instead of this process
_ASK_PERSONALITY = 0xFFFFFFFF
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
_EVERYONE = 0xFFFFFFFF  # -1

_LOCAL = (int(socket.AF_UNIX),)
# In a separate network namespace these address families reach nothing.
_HARMLESS_IF_ALONE = (2, 10, 16)  # AF_INET, AF_INET6, AF_NETLINK


def rules(*, network_is_own: bool) -> tuple[Rule, ...]:
    """Return the rules for refused calls.

    Parameters
    ----------
    network_is_own : bool
        Whether the process has its own, isolated network.
    """
    families = (*_LOCAL, *(_HARMLESS_IF_ALONE if network_is_own else ()))
    return (
        *(Rule(name, errno.EPERM) for name in REFUSED),
        Rule("socket", errno.EPERM, "is not", 0, families),
        Rule("clone", errno.EPERM, "has", 0, (_NEW_NAMESPACES | _SIBLING,)),
        # Its flags are behind a pointer; libraries fall back to the older call.
        Rule("clone3", errno.ENOSYS),
        Rule("personality", errno.EPERM, "is not", 0, (_ASK_PERSONALITY,)),
        # The judge must be able to read the process's memory, and to end it with everything that it
        # has started: no process may leave the process group. Build tools and shells request new
        # groups; the call pretends to succeed.
        Rule("prctl", errno.EPERM, "is", 0, (_PR_SET_DUMPABLE,)),
        Rule("prctl", 0, "is", 0, (_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER)),
        Rule("setsid", 0),
        Rule("setpgid", 0),
        Rule("kill", errno.EPERM, "is", 0, (_EVERYONE,)),
        # Limits, priorities and CPU affinity of other processes. Thread pools pin their threads;
        # the call pretends to succeed.
        Rule("sched_setaffinity", 0, "is not", 0, (0,)),
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
    """Install a filter permanently for all threads of this process.

    Raises
    ------
    Unavailable
        If the system rejects it.
    """
    array = (Instruction * len(program))(*program)
    pointer = ctypes.cast(array, ctypes.POINTER(Instruction))
    try:
        refusing = call("seccomp", _SET_MODE_FILTER, _ALL_THREADS, _Program(len(array), pointer))
    except OSError as error:
        raise Unavailable(f"the kernel does not accept a filter: {error}") from None
    if refusing:
        raise Unavailable(f"thread {refusing} already has another filter")


def filter_calls(*, network_is_own: bool) -> None:
    """Refuse the calls that no solution needs; see `rules`."""
    install(assemble(rules(network_is_own=network_is_own), machine()))
