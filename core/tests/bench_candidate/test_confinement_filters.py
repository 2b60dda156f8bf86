"""Programs for the packet filter: run here by an interpreter, and held against the rules."""

from __future__ import annotations

import errno

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flashinfer_bench.bench.candidate.confinement.filters import (
    ALLOW,
    AUDIT_ARCH,
    ERRNO,
    KILL_PROCESS,
    Rule,
    assemble,
)
from flashinfer_bench.bench.candidate.confinement.numbers import NUMBERS
from flashinfer_bench.bench.candidate.confinement.seccomp import rules

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
        code, if_true, if_false, constant = program[at]
        assert 0 <= if_true < 256
        assert 0 <= if_false < 256
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


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("network_is_own", [True, False])
class TestRules:
    def outcome(self, machine, network_is_own, name, *arguments):
        program = assemble(rules(network_is_own=network_is_own), machine)
        padded = [*arguments, *[0] * (6 - len(arguments))]
        return carry_out(program, machine, NUMBERS[machine][name], padded)

    def test_a_program_is_not_too_long(self, machine, network_is_own):
        assert len(assemble(rules(network_is_own=network_is_own), machine)) < 4096

    @pytest.mark.parametrize("name", ["ptrace", "mount", "unshare", "bpf", "finit_module"])
    def test_refused(self, machine, network_is_own, name):
        assert self.outcome(machine, network_is_own, name) == ERRNO | errno.EPERM

    def test_groups_seem_to_be_made(self, machine, network_is_own):
        assert self.outcome(machine, network_is_own, "setsid") == ERRNO
        assert self.outcome(machine, network_is_own, "setpgid", 5, 5) == ERRNO

    def test_the_newer_clone_is_not_there(self, machine, network_is_own):
        assert self.outcome(machine, network_is_own, "clone3") == ERRNO | errno.ENOSYS

    def test_threads_and_forks_are_cloned(self, machine, network_is_own):
        assert self.outcome(machine, network_is_own, "clone", 0x003D0F00) == ALLOW
        assert self.outcome(machine, network_is_own, "clone", 17) == ALLOW

    @pytest.mark.parametrize("bit", [0x20000, 0x02000000, 0x10000000, 0x20000000, 0x40000000])
    def test_namespaces_are_not(self, machine, network_is_own, bit):
        refused = ERRNO | errno.EPERM
        assert self.outcome(machine, network_is_own, "clone", bit | 17) == refused

    def test_local_sockets_are_allowed(self, machine, network_is_own):
        assert self.outcome(machine, network_is_own, "socket", 1) == ALLOW

    @pytest.mark.parametrize("family", [2, 10, 16])
    def test_the_network_depends(self, machine, network_is_own, family):
        wanted = ALLOW if network_is_own else ERRNO | errno.EPERM
        assert self.outcome(machine, network_is_own, "socket", family) == wanted

    @pytest.mark.parametrize("family", [17, 38, 40, 44])
    def test_strange_sockets_are_refused(self, machine, network_is_own, family):
        assert self.outcome(machine, network_is_own, "socket", family) == ERRNO | errno.EPERM

    def test_the_upper_half_of_an_argument_hides_nothing(self, machine, network_is_own):
        """The kernel takes the family for an int, and so looks at the lower half only."""
        refused = ERRNO | errno.EPERM
        assert self.outcome(machine, network_is_own, "socket", (1 << 32) | 40) == refused
        assert self.outcome(machine, network_is_own, "prctl", (1 << 32) | 4) == refused


def test_the_tables_agree_where_numbers_are_the_same_everywhere():
    for name, number in NUMBERS["x86_64"].items():
        if number >= 424:
            assert NUMBERS["aarch64"][name] == number


@pytest.mark.parametrize("machine", MACHINES)
def test_no_number_is_there_twice(machine):
    assert len(set(NUMBERS[machine].values())) == len(NUMBERS[machine])
