"""Programs for the packet filter: run here by an interpreter, and held against the rules."""

import errno

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fib_sandbox_linux.numbers import NUMBERS
from fib_sandbox_linux.seccomp import (
    ALLOW,
    AUDIT_ARCH,
    ERRNO,
    KILL_PROCESS,
    Rule,
    assemble,
    rules,
)

MACHINES = sorted(NUMBERS)
ARGUMENTS = st.lists(st.integers(0, 2**64 - 1), min_size=6, max_size=6)


def carry_out(program, machine, number, arguments=(0,) * 6, arch=None):
    """Interpret `program` as the kernel does, for one call."""
    data = {0: number, 4: AUDIT_ARCH[machine] if arch is None else arch}
    for index, value in enumerate(arguments):
        data[16 + 8 * index] = value & 0xFFFFFFFF
        data[20 + 8 * index] = value >> 32
    loaded, at = 0, 0
    while True:
        step = program[at]
        code, if_true, if_false, constant = (getattr(step, name) for name, _ in step._fields_)
        at += 1
        if code == 0x06:
            return constant
        if code == 0x20:
            loaded = data[constant]
        elif code == 0x05:
            at += constant
        else:
            holds = {0x15: loaded == constant, 0x35: loaded >= constant, 0x45: loaded & constant}
            at += if_true if holds[code] else if_false


def expected(applied, machine, name, arguments):
    for rule in applied:
        if rule.name != name or NUMBERS[machine].get(name) is None:
            continue
        value = arguments[rule.argument] & 0xFFFFFFFF
        holds = {
            "always": True,
            "is": value in rule.values,
            "is not": value not in rule.values,
            "has": any(value & bits for bits in rule.values),
        }
        if holds[rule.when]:
            return ERRNO | rule.error
    return ALLOW


NAMES = sorted({name for numbers in NUMBERS.values() for name in numbers})
RULES = st.lists(
    st.builds(
        Rule,
        st.sampled_from(NAMES[:12]),
        st.integers(0, 100),
        st.sampled_from(["always", "is", "is not", "has"]),
        st.integers(0, 5),
        st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=6).map(tuple),
    ),
    max_size=12,
)


@given(st.sampled_from(MACHINES), RULES, st.sampled_from(NAMES[:12]), ARGUMENTS, st.data())
def test_a_program_does_what_the_rules_say(machine, applied, name, arguments, data):
    number = NUMBERS[machine].get(name)
    if number is None:
        return
    mine = [rule for rule in applied if rule.name == name]
    if mine:  # hit the values, which chance would miss
        rule = data.draw(st.sampled_from(mine))
        arguments[rule.argument] = data.draw(st.sampled_from([*rule.values, 0, 2**32 + 1]))
    got = carry_out(assemble(applied, machine), machine, number, arguments)
    assert got == expected(applied, machine, name, arguments)


@pytest.mark.parametrize("machine", MACHINES)
@given(number=st.integers(0, 2**30 - 1), arguments=ARGUMENTS)
@example(number=0, arguments=[0] * 6)
def test_calls_without_a_rule_are_allowed(machine, number, arguments):
    ruled = {NUMBERS[machine].get(rule.name) for rule in rules(network_is_own=False)}
    program = assemble(rules(network_is_own=False), machine)
    if number not in ruled:
        assert carry_out(program, machine, number, arguments) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("number", [0, 41, 2**32 - 1])
def test_other_instruction_sets_end_the_process(machine, number):
    program = assemble((), machine)
    assert carry_out(program, machine, number, arch=0x40000003) == KILL_PROCESS  # 32-bit x86


def test_the_other_numbering_of_x86_ends_the_process():
    program = assemble(rules(network_is_own=True), "x86_64")
    for number in (2**30, 2**30 + 41, 2**32 - 1):
        assert carry_out(program, "x86_64", number) == KILL_PROCESS
    assert carry_out(assemble((), "aarch64"), "aarch64", 2**30) == ALLOW


REFUSED, NOT_THERE = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
NEW_NAMESPACES = (0x20000, 0x02000000, 0x10000000, 0x20000000, 0x40000000)
OUTCOMES = [
    *((name, (), REFUSED) for name in ("ptrace", "mount", "unshare", "bpf", "finit_module")),
    ("setsid", (), ERRNO),  # seems to be done
    ("setpgid", (5, 5), ERRNO),
    ("clone3", (), NOT_THERE),
    ("clone", (0x003D0F00,), ALLOW),  # a thread
    ("clone", (17,), ALLOW),
    *(("clone", (bit | 17,), REFUSED) for bit in NEW_NAMESPACES),
    ("socket", (1,), ALLOW),
    *(("socket", (family,), None) for family in (2, 10, 16)),  # it depends
    *(("socket", (family,), REFUSED) for family in (17, 38, 40, 44)),
    # The kernel takes these for ints, and so looks at the lower half only.
    ("socket", ((1 << 32) | 40,), REFUSED),
    ("prctl", ((1 << 32) | 4,), REFUSED),
]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("network_is_own", [True, False])
@pytest.mark.parametrize(("name", "arguments", "outcome"), OUTCOMES)
def test_what_becomes_of_a_call(machine, network_is_own, name, arguments, outcome):
    program = assemble(rules(network_is_own=network_is_own), machine)
    padded = [*arguments, *[0] * (6 - len(arguments))]
    if outcome is None:
        outcome = ALLOW if network_is_own else REFUSED
    assert carry_out(program, machine, NUMBERS[machine][name], padded) == outcome


@pytest.mark.parametrize("machine", MACHINES)
def test_no_number_is_there_twice(machine):
    assert len(set(NUMBERS[machine].values())) == len(NUMBERS[machine])
