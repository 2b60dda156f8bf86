"""What is made of the files that Linux tells about CPUs in."""

import pytest

from fib_judge.watch import cpu as cpu_module
from fib_judge.watch.cpu import (
    CpuWatcher,
    quota_files,
    quota_stalls_s,
    switches,
)


class Machine:
    """A tree of files with ``proc`` and ``sys`` in it."""

    def __init__(self, root):
        self.root = root

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(text))

    def cpu(self, number, path, text):
        self.write(f"sys/devices/system/cpu/cpu{number}/{path}", f"{text}\n")

    def stat(self, *steals):
        lines = [f"cpu{i} 100 0 50 800 10 0 5 {steal} 0 0" for i, steal in enumerate(steals)]
        self.write("proc/stat", "cpu  1 2 3 4 5 6 7 8 9 10\n" + "\n".join(lines) + "\nintr 5 0\n")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_module, "_allowed_cpus", lambda: [0, 1])
    monkeypatch.setattr(cpu_module, "_load", lambda: 0.5)
    return Machine(tmp_path)


class Ticks:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def started(machine, device="cpu", **options):
    watcher = CpuWatcher(root=machine.root, **options)
    watcher.start(device)
    return watcher


def test_where_nothing_is_there(machine):
    watcher = started(machine)
    assert watcher.sample().values == {"load": 0.5}
    assert watcher.sample().values == {}  # the system's own figure is as old
    assert watcher.stop().facts == {"cpus": 2}


def test_frequency_one_cpu_after_the_other(machine):
    for number, khz in enumerate((800_000, 3_600_000)):
        machine.cpu(number, "cpufreq/scaling_cur_freq", khz)
        machine.cpu(number, "cpufreq/scaling_governor", "powersave")
    watcher = started(machine)
    seen = [watcher.sample().values["frequency_mhz"] for _ in range(4)]
    assert sorted(seen) == [800, 800, 3600, 3600]
    assert watcher.stop().facts["governor"] == "powersave"


def test_heat_a_slow_down_of_a_core(machine):
    machine.cpu(1, "thermal_throttle/core_throttle_count", 7)
    watcher = started(machine)
    assert watcher.sample().throttled == ()
    machine.cpu(1, "thermal_throttle/core_throttle_count", 8)
    assert watcher.sample().throttled == ("cpu_thermal",)
    assert watcher.sample().throttled == ()


def test_steal_share_of_the_allowed_cpus(machine):
    machine.stat(0, 0, 0)
    watcher = started(machine)
    machine.stat(10, 30, 999)  # the third is not allowed
    summary = watcher.stop()
    assert summary.facts["steal_share"] == 1.0  # nothing else has grown
    assert summary.notes == ("the hypervisor took 100.0% of the CPU time",)


class TestQuota:
    def test_version_2_and_the_groups_around(self, machine):
        machine.write("proc/self/cgroup", "0::/pod/box\n")
        machine.write("sys/fs/cgroup/cpu.stat", "usage_usec 5\n")
        machine.write("sys/fs/cgroup/pod/cpu.stat", "nr_throttled 3\nthrottled_usec 2000000\n")
        machine.write("sys/fs/cgroup/pod/box/cpu.stat", "nr_throttled 0\nthrottled_usec 0\n")
        assert quota_stalls_s(quota_files(machine.root)) == 2.0

    def test_stalls_are_told_but_drop_nothing(self, machine):
        machine.write("proc/self/cgroup", "0::/\n")
        machine.write("sys/fs/cgroup/cpu.stat", "throttled_usec 0\n")
        clock = Ticks()
        watcher = started(machine, clock=clock)
        machine.write("sys/fs/cgroup/cpu.stat", "throttled_usec 3000000\n")
        clock.now = 2.0
        assert watcher.sample().throttled == ()
        summary = watcher.stop()
        assert summary.facts["quota_stalls"] == 1.5
        assert summary.notes == ("a CPU quota held threads back for 1.5 s in each second",)


def test_load_a_busy_machine_is_told(machine, monkeypatch):
    monkeypatch.setattr(cpu_module, "_load", lambda: 9.25)
    notes = started(machine).stop().notes
    assert notes == ("the load was 9.2 on 2 CPUs before timing",)


def test_switches_of_all_threads(machine):
    for thread, counts in (("7", (5, 2)), ("8", (10, 1))):
        text = "voluntary_ctxt_switches:\t{}\nnonvoluntary_ctxt_switches:\t{}\n"
        machine.write(f"proc/7/task/{thread}/status", "Name:\tx y\n" + text.format(*counts))
    assert switches(machine.root, "7") == {
        "voluntary_switches": 15,
        "involuntary_switches": 3,
    }
