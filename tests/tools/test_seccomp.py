"""The filter, run by an interpreter of BPF: every number on both architectures, and what arguments decide."""

from __future__ import annotations

import struct

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.tools.sandbox.calls import ALLOWED, OF_COMMANDS
from agentgrpo.tools.sandbox.seccomp import (
    ALLOW,
    ARCHITECTURES,
    CLONE3,
    ENOSYS,
    EPERM,
    ERRNO,
    IOCTLS,
    KILL,
    NEWEST,
    PRCTLS,
    filter_for,
)

REFUSAL, ABSENT = ERRNO | EPERM, ERRNO | ENOSYS
MACHINES = sorted(ARCHITECTURES)


def decide(machine: str, number: int, *arguments: int, audit: int | None = None, is_command: bool = False) -> int:
    """What the kernel would do with a call: a classic BPF machine over struct seccomp_data."""
    audit = ARCHITECTURES[machine].audit if audit is None else audit
    data = struct.pack("=iIQ6Q", number, audit, 0, *arguments, *[0] * (6 - len(arguments)))
    program = list(struct.iter_unpack("=HBBI", filter_for(machine, is_command=is_command)))
    accumulator = at = 0
    while True:
        code, if_true, if_false, value = program[at]
        at += 1
        if code == 0x20:
            accumulator = int.from_bytes(data[value : value + 4], "little")
        elif code == 0x06:
            return value
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: accumulator & value != 0}[code]
            at += if_true if holds else if_false


def number_of(name: str, machine: str) -> int:
    number = ALLOWED[name][ARCHITECTURES[machine].column]
    assert number is not None
    return number


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_listed_is_allowed_and_nothing_else(machine: str) -> None:
    listed = {numbers[ARCHITECTURES[machine].column] for numbers in ALLOWED.values()} - {None}
    listed -= {number_of("ioctl", machine)}  # whose argument is none of those it has
    got = {number: decide(machine, number, 1) for number in range(NEWEST + 1)}
    want = {number: ALLOW if number in listed else ABSENT if number == CLONE3 else REFUSAL for number in got}
    assert got == want


@pytest.mark.parametrize("machine", MACHINES)
def test_what_holds_memory_that_nobody_counts_is_refused(machine: str) -> None:
    x86 = {29: "shmget", 30: "shmat", 64: "semget", 68: "msgget", 240: "mq_open", 319: "memfd_create", 49: "bind"}
    arm = {194: "shmget", 196: "shmat", 190: "semget", 186: "msgget", 180: "mq_open", 279: "memfd_create", 200: "bind"}
    numbers = arm if machine == "aarch64" else x86
    assert {decide(machine, number) for number in numbers} == {REFUSAL}


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_of_tomorrow_and_of_other_tables_do_not_exist(machine: str) -> None:
    numbers = (NEWEST + 1, 600, 1 << 30, (1 << 30) + 101, (1 << 32) - 1)
    assert [decide(machine, number if number < 1 << 31 else number - (1 << 32)) for number in numbers] == [ABSENT] * 5


@pytest.mark.parametrize("machine", MACHINES)
def test_another_architecture_is_killed(machine: str) -> None:
    other = 0x40000003  # i386 on the same kernel has other numbers for the same calls
    assert decide(machine, 1, audit=other) == KILL


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_decide(machine: str) -> None:
    clone, pair, fcntl, ioctl, prctl = (
        number_of(name, machine) for name in ("clone", "socketpair", "fcntl", "ioctl", "prctl")
    )
    spaces = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
    assert {
        "threads": decide(machine, clone, 0x003D0F00),
        "fork": decide(machine, clone, 0x01200011),
        "namespaces": {decide(machine, clone, space | 17) for space in spaces},
        "families": [decide(machine, pair, family) for family in (1, 2, 10, 16, 17, 40)],
        "sizes of pipes": [decide(machine, fcntl, 0, command) for command in (3, 1031, 1032)],
        "terminals": [decide(machine, ioctl, 0, request) for request in (0x5412, 0x541C, 0x40045431)],
        "known requests": {decide(machine, ioctl, 0, request) for request in IOCTLS},
        "high bits": decide(machine, ioctl, 0, 0x5412 | 1 << 32),
        "processes": [{decide(machine, prctl, option) for option in PRCTLS}, decide(machine, prctl, 22)],
    } == {
        "threads": ALLOW,
        "fork": ALLOW,
        "namespaces": {REFUSAL},
        "families": [ALLOW, *[REFUSAL] * 5],
        "sizes of pipes": [ALLOW, REFUSAL, ALLOW],
        "terminals": [REFUSAL] * 3,
        "known requests": {ALLOW},
        "high bits": REFUSAL,
        "processes": [{ALLOW}, REFUSAL],
    }


def test_an_unknown_machine_has_no_filter() -> None:
    with pytest.raises(ConfigError, match=r"no system call filter for riscv64; supported machines: x86_64, aarch64"):
        filter_for("riscv64")


@pytest.mark.parametrize("machine", MACHINES)
def test_a_command_has_sockets_of_the_network_and_none_of_this_machine(machine: str) -> None:
    column = ARCHITECTURES[machine].column

    def decided(name: str, *arguments: int) -> int:
        number = OF_COMMANDS[name][column]
        assert number is not None
        return decide(machine, number, *arguments, is_command=True)

    assert [decided("socket", family) for family in (1, 2, 10, 16, 17, 40)] == [REFUSAL, ALLOW, ALLOW, *[REFUSAL] * 3]
    assert (decided("socketpair", 1), decided("socketpair", 2)) == (ALLOW, REFUSAL)
    assert [decided("ioctl", 0, request) for request in (0x5401, 0x5412, 0x541C)] == [ALLOW, REFUSAL, REFUSAL]
    assert (decided("clone", 0x11), decided("clone", 0x10000011)) == (ALLOW, REFUSAL)
    assert {*ALLOWED} < {*OF_COMMANDS}
    listed = {numbers[column] for numbers in OF_COMMANDS.values()} - {None}
    for number in set(range(NEWEST + 1)) - listed - {CLONE3}:
        assert decide(machine, number, 1, is_command=True) == REFUSAL, number
