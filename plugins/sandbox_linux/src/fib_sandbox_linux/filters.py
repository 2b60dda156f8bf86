"""Assembling filters of calls of the system: programs of the classic Berkeley packet filter.

A filter looks at the number of a call and at its arguments, as numbers: it cannot follow pointers.
See https://docs.kernel.org/userspace-api/seccomp_filter.html.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fib_sandbox_linux.numbers import NUMBERS

if TYPE_CHECKING:
    from collections.abc import Iterable

ALLOW = 0x7FFF0000
ERRNO = 0x00050000  # the error's number is in the lower half; 0 stands for success
KILL_PROCESS = 0x80000000

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""How a filter is told the instruction set."""

_X32_CALLS = 0x40000000  # another set of numbers for the same machine

LOAD, JUMP_EQUAL, JUMP_NOT_LESS, JUMP_ANY_BIT, JUMP, RETURN = 0x20, 0x15, 0x35, 0x45, 0x05, 0x06
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16


class Instruction(ctypes.Structure):
    """One instruction: what to do, how many to skip if a condition holds or not, and a constant."""

    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("constant", ctypes.c_uint32),
    )


@dataclass(frozen=True)
class Rule:
    """What becomes of a call.

    Parameters
    ----------
    name : str
        Name of the call; rules for calls that a machine does not have are left out.
    error : int
        Error number that it answers without being made; 0 makes it seem to have succeeded.
    when : str
        ``always``; or when the argument ``is`` one of the values, ``is not`` any of them, or
        ``has`` a bit of one of them set.
    argument : int
        Which argument; its lower 32 bits count.
    values : tuple of int
        What it is compared with.
    """

    name: str
    error: int
    when: Literal["always", "is", "is not", "has"] = "always"
    argument: int = 0
    values: tuple[int, ...] = ()


def assemble(rules: Iterable[Rule], machine: str) -> list[Instruction]:
    """Return the program that applies `rules`, and allows everything else.

    Parameters
    ----------
    rules : iterable of Rule
        The first one that holds counts.
    machine : str
        Instruction set, as in `NUMBERS`. Calls by the rules of another one end the process: they
        have other numbers.
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
    """Return what is done when the number is the rule's; it ends with the number loaded."""
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
    """Return comparisons that skip what comes next, the refusal, unless the rule holds."""
    code = JUMP_ANY_BIT if rule.when == "has" else JUMP_EQUAL
    last = len(rule.values) - 1
    found = [
        Instruction(code, last - index + 1, 0, value) for index, value in enumerate(rule.values)
    ]
    return found if rule.when == "is not" else [*found, Instruction(JUMP, 0, 0, 1)]
