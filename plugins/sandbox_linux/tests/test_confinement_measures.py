"""Each measure alone: what it forbids is tried in a process that has taken it and no other."""

import ast
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from fib_sandbox_linux import landlock, limits, namespaces, seccomp, system
from fib_sandbox_linux.confinement import LinuxSandbox, confine
from fib_sandbox_linux.seccomp import Rule, assemble
from fib_sandbox_linux.system import Unavailable
from flashinfer_bench.bench.candidate.processes import control_groups, end_idle_threads

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these measures")

SMALL = limits.Limits(memory_bytes=2 << 30, file_bytes=1 << 20, processes=20)


def write(path):
    path.write_text("x")
    return "written"


def change_mode(path):
    path.chmod(0o600)
    return "changed"


@pytest.fixture
def connect():
    """Connect to a port that somebody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def connect():
            with socket.create_connection(server.getsockname(), timeout=5):
                return "connected"

        yield connect


@pytest.fixture
def victim():
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


class TestLandlockFiles:
    @pytest.fixture
    def confined(self, tmp_path):
        (tmp_path / "mine").mkdir()
        places = [tmp_path / "mine", Path(os.devnull), tmp_path / "missing"]
        return (system.forbid_new_privileges, partial(landlock.forbid_writing, places))

    def test_only_own_folders_and_devices_are_writable(self, confined, tmp_path, in_child):
        kept, link = tmp_path / "kept", tmp_path / "mine" / "link"
        kept.write_text("kept")
        (tmp_path / "other").mkdir()
        link.symlink_to(tmp_path / "outside")
        for path in (tmp_path / "mine" / "a", Path(os.devnull)):
            assert in_child(*confined, partial(write, path)) == "written"
        others = [tmp_path / place for place in ("a", "mine/../b", "other/a")]
        attempts = [partial(write, path) for path in (*others, kept, link)]
        for attempt in (*attempts, kept.unlink, partial(kept.rename, tmp_path / "new")):
            assert in_child(*confined, attempt) == "PermissionError", attempt
        assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "mine", "other"]
        assert list((tmp_path / "other").iterdir()) == []
        assert kept.read_text() == "kept"

    def test_reading_and_executing_stay(self, confined, in_child):
        run = partial(subprocess.check_output, ["cat", "/proc/self/comm"], text=True)
        assert in_child(*confined, run) == "cat\n"

    def test_memory_of_the_parent_is_out_of_reach(self, confined, in_child):
        def look():
            with Path(f"/proc/{os.getppid()}/mem").open("rb"):
                return "opened"

        assert in_child(*confined, look) == "PermissionError"


def move_between_folders(place):
    """Write a file in one sub-folder of `place`, and move and link it to others."""
    for name in ("made", "kept", "linked"):
        (place / name).mkdir(exist_ok=True)
    (place / "made" / "a").write_text("x")
    (place / "made" / "a").rename(place / "kept" / "a")
    (place / "linked" / "a").hardlink_to(place / "kept" / "a")
    (place / "made").rename(place / "kept" / "made")
    return (place / "linked" / "a").read_text()


class TestMoves:
    """What every layer of Landlock forbids that does not say otherwise."""

    @staticmethod
    def layers(place):
        return {
            "files": partial(landlock.forbid_writing, [place]),
            "network": landlock.forbid_network,
            "signals": landlock.forbid_signals,
        }

    @pytest.mark.parametrize(
        "names", [("files",), ("network",), ("signals",), ("files", "network", "signals")]
    )
    def test_within_own_folders(self, tmp_path, names, in_child):
        mine = tmp_path / "mine"
        mine.mkdir()
        taken = [self.layers(mine)[name] for name in names]
        move = partial(move_between_folders, mine)
        assert in_child(system.forbid_new_privileges, *taken, move) == "x"

    @pytest.mark.parametrize("act", ["rename", "link"])
    @pytest.mark.parametrize("places", [("mine", "other"), ("other", "mine")])
    def test_neither_out_of_them_nor_into_them(self, tmp_path, act, places, in_child):
        """What is in a folder of its own a process may write to."""
        source, target = (tmp_path / place for place in places)
        source.mkdir(), target.mkdir()
        (source / "a").write_text("x")
        act = partial(getattr(os, act), source / "a", target / "a")
        taken = self.layers(tmp_path / "mine").values()
        got = in_child(system.forbid_new_privileges, *taken, act)
        assert got in ("PermissionError", "OSError")
        assert not (target / "a").exists()


class TestLandlockElse:
    NETWORK = (system.forbid_new_privileges, landlock.forbid_network)
    SIGNALS = (system.forbid_new_privileges, landlock.forbid_signals)

    def test_network(self, connect, in_child):
        assert in_child(connect) == "connected"
        assert in_child(*self.NETWORK, connect) == "PermissionError"

    @pytest.mark.parametrize("number", [0, signal.SIGTERM])
    def test_signals_to_others(self, victim, number, in_child):
        for other in (victim.pid, os.getpid()):
            attempt = partial(os.kill, other, number)
            assert in_child(*self.SIGNALS, attempt) == "PermissionError"
        assert victim.poll() is None

    def test_signals_to_descendants_stay(self, in_child):
        def end_a_child():
            with subprocess.Popen(["sleep", "60"]) as child:
                child.kill()
            return child.returncode

        assert in_child(*self.SIGNALS, end_a_child) == -signal.SIGKILL

    def test_abstract_sockets(self, in_child):
        name = f"\0fib-test-{os.getpid()}"

        def connect():
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(name)
                return "connected"

        with socket.socket(socket.AF_UNIX) as server:
            server.bind(name)
            server.listen()
            assert in_child(connect) == "connected"
            assert in_child(*self.SIGNALS, connect) == "PermissionError"


def leave_mounts(*writable, hidden=()):
    """Return what makes all files read-only; the first step grants the right to it."""
    leave = partial(namespaces.leave_mounts, writable, shared_bytes=1 << 20, hidden=hidden)
    return namespaces.leave_network, leave


class TestNamespaces:
    def test_no_connection_leaves_the_network(self, connect, in_child):
        assert in_child(namespaces.leave_network, connect) == "OSError"
        assert in_child(namespaces.leave_network, os.getuid) == os.getuid()

    def test_files_are_read_only(self, tmp_path, in_child):
        mine, other = tmp_path / "mine", tmp_path / "other"
        mine.mkdir()
        other.write_text("kept")
        taken = leave_mounts(mine, tmp_path / "missing")
        assert in_child(*taken, partial(write, mine / "a")) == "written"
        assert (mine / "a").read_text() == "x"
        assert in_child(*taken, partial(write, other)) == "OSError"
        # Landlock alone does not forbid these.
        assert in_child(*taken, partial(change_mode, other)) == "OSError"
        assert in_child(*taken, partial(os.utime, other)) == "OSError"

    def test_shared_memory_is_private_and_small(self, in_child):
        def fill():
            with Path("/dev/shm/fib-test").open("wb") as stream:
                stream.write(b"x" * (2 << 20))
            return "written"

        def mark():
            Path("/dev/shm/fib-test").write_text("x")
            return Path("/dev/shm/fib-test").exists()

        assert in_child(*leave_mounts(), fill) == "OSError"
        assert in_child(*leave_mounts(), mark) is True
        assert not Path("/dev/shm/fib-test").exists()

    def test_what_is_hidden_is_empty(self, tmp_path, in_child):
        """Others' locks: neither can they be held, nor can files of their names be made."""
        folder, lock, sign = tmp_path / "locks", tmp_path / "device-a.lock", tmp_path / "note"
        folder.mkdir()
        for path in (folder / "device-b.lock", lock, sign):
            path.write_text("x")
        taken = leave_mounts(tmp_path, hidden=[folder, lock, tmp_path / "missing"])
        assert in_child(*taken, partial(os.listdir, folder)) == []
        assert in_child(*taken, partial(write, folder / "device-b.lock")) == "OSError"
        assert in_child(*taken, lock.read_text) == ""
        assert in_child(*taken, lock.unlink) == "OSError"
        assert in_child(*taken, sign.read_text) == "x"
        assert (folder / "device-b.lock").read_text() == lock.read_text() == "x"


class TestCapabilities:
    def test_only_reading_is_left_to_root(self, in_child):
        kept = 1 << system.READ_ANY_FILE
        held = in_child(system.drop_capabilities, system.held_capabilities)
        assert held == system.held_capabilities() & kept

    def test_programs_get_none_back(self, in_child):
        command = ["grep", "^CapEff", "/proc/self/status"]
        taken = (system.forbid_new_privileges, partial(system.drop_capabilities, 0))
        told = in_child(*taken, partial(subprocess.check_output, command, text=True))
        assert int(told.split()[1], 16) == 0

    @pytest.mark.skipif(os.getuid() != 0, reason="only root has a capability to lose")
    def test_root_no_longer_overrides(self, in_child):
        regroup = partial(os.setgroups, [])
        assert in_child(system.drop_capabilities, regroup) == "PermissionError"


class TestSystemCalls:
    ALONE = (system.forbid_new_privileges, partial(seccomp.filter_calls, network_is_own=True))
    NOT_ALONE = (system.forbid_new_privileges, partial(seccomp.filter_calls, network_is_own=False))

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("ptrace", (16, 1, 0, 0)),
            ("process_vm_readv", (1, 0, 0, 0, 0, 0)),
            ("process_vm_writev", (1, 0, 0, 0, 0, 0)),
            ("pidfd_getfd", (0, 0, 0)),
            ("mount", (0, 0, 0, 0, 0)),
            ("umount2", (0, 0)),
            ("unshare", (0x10000000,)),
            ("setns", (0, 0)),
            ("bpf", (0, 0, 0)),
            ("perf_event_open", (0, 0, 0, 0, 0)),
            ("keyctl", (0, 0, 0, 0, 0)),
            ("init_module", (0, 0, 0)),
            ("kexec_load", (0, 0, 0, 0)),
            ("io_uring_setup", (1, 0)),
            ("userfaultfd", (0,)),
            ("clock_settime", (0, 0)),
            ("adjtimex", (0,)),
            ("personality", (0x0040000,)),
            ("prctl", (4, 0, 0, 0, 0)),
            ("clone", (0x10000000 | 17, 0, 0, 0, 0)),
            ("clone", (0x8000 | 17, 0, 0, 0, 0)),  # a child of its parent
        ],
    )
    def test_refused(self, name, arguments, in_child):
        attempt = partial(system.call, name, *arguments)
        assert in_child(*self.ALONE, attempt) == "PermissionError"

    def test_the_personality_may_be_asked_for(self, in_child):
        assert in_child(*self.ALONE, partial(system.call, "personality", 0xFFFFFFFF)) >= 0

    def test_nothing_leaves_session_or_group(self, in_child):
        def leave():
            os.setsid()
            os.setpgid(0, 0)
            subprocess.run(["true"], start_new_session=True, check=True)
            return os.getpid() in (os.getsid(0), os.getpgrp())

        assert in_child(*self.ALONE, leave) is False

    def test_limits_and_priorities_of_others(self, victim, in_child):
        nice = partial(os.setpriority, os.PRIO_PROCESS, victim.pid, 19)
        assert in_child(*self.ALONE, nice) == "PermissionError"
        limit = partial(resource.prlimit, victim.pid, resource.RLIMIT_NOFILE, (1, 1))
        assert in_child(*self.ALONE, limit) == "PermissionError"
        own = partial(resource.getrlimit, resource.RLIMIT_NOFILE)
        assert in_child(*self.ALONE, own) == list(own())
        cores = os.sched_getaffinity(victim.pid)
        in_child(*self.ALONE, partial(os.sched_setaffinity, victim.pid, {min(cores)}))
        assert os.sched_getaffinity(victim.pid) == cores

    def test_signals_to_everyone(self, in_child):
        assert in_child(*self.ALONE, partial(os.kill, -1, 0)) == "PermissionError"

    @pytest.mark.parametrize(
        ("family", "alone", "not_alone"),
        [
            (socket.AF_UNIX, "made", "made"),
            (socket.AF_INET, "made", "PermissionError"),
            (socket.AF_INET6, "made", "PermissionError"),
            (socket.AF_NETLINK, "made", "PermissionError"),
            (socket.AF_PACKET, "PermissionError", "PermissionError"),
            (socket.AF_VSOCK, "PermissionError", "PermissionError"),
        ],
    )
    def test_sockets(self, family, alone, not_alone, in_child):
        def make():
            kind = socket.SOCK_STREAM if family == socket.AF_VSOCK else socket.SOCK_DGRAM
            with socket.socket(family, kind if family != socket.AF_PACKET else socket.SOCK_RAW):
                return "made"

        assert in_child(*self.NOT_ALONE, make) == not_alone
        if family != socket.AF_INET6 or socket.has_ipv6:
            assert in_child(*self.ALONE, make) == alone

    def test_threads_and_programs_start(self, in_child):
        def start():
            seen = []
            thread = threading.Thread(target=seen.append, args=("thread",))
            thread.start()
            thread.join()
            return seen[0] + subprocess.check_output(["echo", "-program"], text=True)

        assert in_child(*self.NOT_ALONE, start) == "thread-program\n"

    def test_it_holds_in_threads_that_run_already(self, in_child):
        def ask_elsewhere():
            go, seen = threading.Event(), []

            def work():
                go.wait()
                try:
                    system.call("unshare", 0)
                except OSError as error:
                    seen.append(type(error).__name__)

            thread = threading.Thread(target=work)
            thread.start()
            for step in self.ALONE:
                step()
            go.set()
            thread.join()
            return seen[0]

        assert in_child(ask_elsewhere) == "PermissionError"


class TestLimits:
    def test_large_files(self, tmp_path, in_child):
        def fill():
            (tmp_path / "large").write_bytes(b"x" * (SMALL.file_bytes + 1))
            return "written"

        limit = partial(limits.limit_files, SMALL)
        assert in_child(limit, fill) == "OSError"
        assert in_child(limit, partial(resource.getrlimit, resource.RLIMIT_CORE)) == [0, 0]
        assert (tmp_path / "large").stat().st_size <= SMALL.file_bytes

    def test_memory(self, in_child):
        limit, allocate = partial(limits.limit_memory, SMALL), partial(bytearray, 6 << 30)
        assert in_child(limit, allocate) == "MemoryError"

    def test_a_lower_limit_is_kept(self, in_child):
        lower = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (50, 50))
        ask = partial(resource.getrlimit, resource.RLIMIT_NOFILE)
        assert in_child(lower, partial(limits.limit_files, SMALL), ask) == [50, 50]

    @staticmethod
    def fork_many():
        """Start up to 100 processes; return how many could be."""
        children = []
        try:
            for _ in range(100):
                pid = os.fork()
                if pid == 0:
                    signal.pause()
                children.append(pid)
        except BlockingIOError:
            pass
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return len(children)

    def test_processes_in_a_control_group(self, in_child):
        started = in_child(partial(limits.join_group, "pids", SMALL.processes), self.fork_many)
        assert started == SMALL.processes - 1

    def test_processes_of_a_user(self, in_child):
        def become_nobody():
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)

        started = in_child(become_nobody, partial(limits.limit_processes, SMALL), self.fork_many)
        assert 0 < started <= SMALL.processes

    @pytest.mark.skipif(os.getuid() != 0, reason="the processes of a user are counted")
    def test_root_is_told(self):
        with pytest.raises(Unavailable, match="root"):
            limits.limit_processes(SMALL)

    def test_memory_that_processes_share(self, in_child):
        """The system ends who takes more, whatever kind of memory it is and whoever asks."""

        def share():
            pid = os.fork()
            if pid == 0:
                os.write(os.memfd_create("shared"), b"x" * (SMALL.memory_bytes // 8))
                os._exit(0)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

        limit = partial(limits.join_group, "memory", SMALL.memory_bytes // 16)
        assert in_child(limit, share) == -signal.SIGKILL

    def test_a_process_that_was_adopted_is_in_its_groups_and_stays(self, tmp_path):
        def own_groups(pid="self"):
            return {key: group.name for key, group in control_groups(pid).items()}

        in_groups, told = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.read(in_groups[0], 1)
            names = ("process-limit", "freezer", "memory-limit")
            applied, missing = confine([], device="cpu", workdir=tmp_path, only=names)
            os.write(told[1], repr((applied, missing, own_groups())).encode())
            os._exit(0)
        before = own_groups(pid)
        LinuxSandbox().adopt(pid, device="cpu")
        groups = own_groups(pid)
        os.write(in_groups[1], b"x")
        applied, _, after = ast.literal_eval(os.read(told[0], 1 << 16).decode())
        os.waitpid(pid, 0)
        limits.remove_empty_groups()
        if groups == before:
            pytest.skip("this machine does not offer control groups")
        assert {"process-limit", "freezer", "memory-limit"} == set(applied)
        assert groups == after
        assert f"fib-candidate-{pid}" in groups.values()

    def test_groups_that_are_empty_are_removed(self, in_child):
        def own_groups():
            limits.join_group("pids", 20)  # it is in one already
            groups = control_groups().values()
            return [str(group) for group in groups if group.name.startswith("fib-candidate-")]

        made = in_child(partial(limits.join_group, "pids", 20), own_groups)
        limits.remove_empty_groups()
        assert made
        assert not any(Path(group).exists() for group in made)


def test_threads_those_that_stay_are_counted(in_child):
    def begin_one():
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        return end_idle_threads()

    assert in_child(begin_one) == 1


class TestWithoutAny:
    """A system that offers nothing: reasons, and no error."""

    @staticmethod
    def refusals(*names):
        system.forbid_new_privileges()
        rules = [Rule(name, errno.EPERM) for name in names]
        seccomp.install(assemble(rules, system.machine()))

    @staticmethod
    def take_all(workdir):
        os.chdir(workdir)
        return list(confine([], device="cpu", workdir=workdir))

    def test_each_has_its_reason(self, tmp_path, in_child):
        names = ("unshare", "mount", "landlock_create_ruleset", "seccomp", "capset")
        lacking = partial(self.refusals, *names)
        applied, missing = in_child(lacking, partial(self.take_all, tmp_path))
        assert {"landlock-files", "network-namespace", "mount-namespace", "system-calls"} <= set(
            missing
        )
        assert not set(applied).intersection(missing)
        assert all("not permitted" in reason for reason in missing.values())

    def test_threads_that_stay_leave_what_holds_for_each_only(self, tmp_path, in_child):
        def with_a_thread():
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            return self.take_all(tmp_path)

        applied, missing = in_child(with_a_thread)
        assert "1 other threads" in missing["landlock-files"]
        assert "landlock-files" not in applied
        assert "resource-limits" in applied
