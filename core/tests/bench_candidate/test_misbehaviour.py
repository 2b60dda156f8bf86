"""Solutions that crash, hang, flood or lie: each costs its own evaluation and nothing else."""

import contextlib
import signal
import textwrap

import pytest
import torch

from flashinfer_bench.bench.executors.base import (
    CandidateCrashed,
    CandidateError,
    CandidateFailed,
    CandidateMisbehaved,
    CandidateTimeout,
)

X, Y = torch.arange(8.0), torch.ones(8)
ADD = "def run(x, y):\n    return x + y\n"
SHORT = 0.5


def body(text):
    return "def run(x, y):\n" + textwrap.indent(textwrap.dedent(text), "    ")


@pytest.fixture
def healthy(bench, server_executor):
    """Whether the fork server still is the same one, and candidates work."""
    before = server_executor._runs.server.pid

    def check():
        (got,) = bench.load(ADD).call(0, timeout_s=30)
        return torch.equal(got, X + Y) and server_executor._runs.server.pid == before

    return check


class TestCrash:
    @pytest.mark.parametrize(
        ("code", "exit_code", "words"),
        [
            ("import ctypes; ctypes.string_at(0)", -11, "SIGSEGV"),
            ("import os; os.abort()", -6, "SIGABRT"),
            ("import os; os.kill(os.getpid(), 9)", -9, "SIGKILL"),
            ("import os, signal; signal.raise_signal(signal.SIGTERM)", -15, "SIGTERM"),
            ("import os; os._exit(0)", 0, "exited with code 0"),
            ("import os; os._exit(3)", 3, "exited with code 3"),
            ("import os; os.killpg(0, 9)", -9, "SIGKILL"),
        ],
    )
    def test_in_a_call(self, bench, healthy, code, exit_code, words):
        candidate = bench.load(body(code))
        with pytest.raises(CandidateCrashed, match=words) as caught:
            candidate.call(0, timeout_s=30)
        assert (caught.value.exit_code, caught.value.stage) == (exit_code, "call")
        assert not candidate.alive
        assert healthy()

    def test_a_crash_in_native_code_leaves_a_python_traceback_in_the_log(self, bench):
        candidate = bench.load("print('before')\n" + body("import ctypes; ctypes.string_at(0)"))
        with pytest.raises(CandidateCrashed):
            candidate.call(0, timeout_s=30)
        assert candidate.log().startswith("before\n")
        assert "main.py" in candidate.log()


class TestHang:
    @pytest.mark.parametrize(
        "code",
        [
            "while True: pass",
            "import time; time.sleep(1000)",
            "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
            """
            import signal
            for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_IGN)
            while True: pass
            """,
            "import ctypes; ctypes.PyDLL(None).sleep(1000)  # keeps the interpreter's lock",
            "import os\nif os.fork(): os.wait()\nwhile True: pass",
        ],
        ids=["loop", "sleep", "stopped", "ignores-signals", "native", "forked"],
    )
    def test_is_killed_with_its_group(self, bench, exists, group_exists, healthy, code):
        candidate = bench.load(body(code))
        with pytest.raises(CandidateTimeout, match=r"within 0\.5 s"):
            candidate.call(0, timeout_s=SHORT)
        assert not candidate.alive
        assert not exists(candidate.pid)
        assert not group_exists(candidate.pid)
        assert healthy()

    def test_one_that_reads_nothing_while_inputs_are_sent(self, bench):
        """A thread of the solution keeps the interpreter's lock; the judge must not wait for it."""
        code = """
            import ctypes, threading
            threading.Timer(0.2, ctypes.PyDLL(None).sleep, [1000]).start()
            return x
        """
        candidate = bench.load(body(code))
        candidate.call(0, timeout_s=30)
        values = [torch.ones(2_000_000)] * 2
        with pytest.raises(CandidateTimeout) as caught:  # noqa: PT012
            while True:  # until the thread has begun
                candidate.put_inputs(1, values, {"n": 8}, timeout_s=SHORT)
        assert caught.value.stage == "inputs"


class TestDescendants:
    def test_a_grandchild_that_has_left_the_group(self, bench, exists, healthy):
        code = """
            import subprocess
            shell = "setsid sh -c 'sleep 1000 & echo $!; echo $$; wait' "
            process = subprocess.Popen(shell, shell=True, stdout=subprocess.PIPE, text=True)
            print(process.stdout.readline(), process.stdout.readline())
            return x
        """
        candidate = bench.load(body(code))
        candidate.call(0, timeout_s=30)
        pids = [int(word) for word in candidate.log().split()]
        assert len(pids) == 2
        assert all(exists(pid) for pid in pids)
        candidate.close()
        assert not any(exists(pid) for pid in pids)
        assert healthy()

    def test_a_daemon(self, bench, exists, healthy):
        """Forked twice, with a session of its own: not even its parent's parent is ours."""
        code = """
            import os, time
            reader, writer = os.pipe()
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.write(writer, str(os.getpid()).encode())
                    while True: time.sleep(1000)
                os._exit(0)
            os.wait()
            print(os.read(reader, 100).decode())
            return x
        """
        candidate = bench.load(body(code))
        candidate.call(0, timeout_s=30)
        daemon = int(candidate.log())
        assert exists(daemon)
        candidate.close()
        assert not exists(daemon)
        assert healthy()

    def test_what_a_crashed_one_leaves_behind(self, bench, exists):
        code = """
            import os, subprocess
            print(subprocess.Popen(["setsid", "sleep", "1000"]).pid, flush=True)
            os._exit(1)
        """
        candidate = bench.load(body(code))
        with pytest.raises(CandidateCrashed, match="code 1"):
            candidate.call(0, timeout_s=30)
        assert not exists(int(candidate.log()))

    def test_the_daemon_of_another_candidate_is_spared(self, bench, exists):
        code = """
            import os, subprocess
            shell = "setsid sleep 1000 & echo $!"
            print(subprocess.check_output(shell, shell=True, text=True).strip())
            return x
        """
        # The shell's output closes only if the daemon does not hold it.
        code = code.replace("sleep 1000 &", "sleep 1000 >/dev/null 2>&1 &")
        candidate = bench.load(body(code))
        candidate.call(0, timeout_s=30)
        daemon = int(candidate.log())
        bench.load(ADD).close()
        assert exists(daemon)
        candidate.close()
        assert not exists(daemon)

    @pytest.mark.parametrize("end", ["return x", "raise SystemExit(0)", "import os; os._exit(0)"])
    def test_a_fork_that_comes_back(self, bench, end):
        """Both processes return from the solution; one answer must come, and from the right one."""
        code = f"""
            import os
            if os.fork() == 0:
                {end}
            os.wait()
            return x + y
        """
        candidate = bench.load(body(code))
        for _ in range(3):
            (got,) = candidate.call(0, timeout_s=30)
            assert torch.equal(got, X + Y)

    def test_a_child_that_holds_the_channel_after_the_end(self, bench):
        """The connection stays open, so its end does not tell that the candidate has ended."""
        code = """
            import os, time
            if os.fork() == 0:
                time.sleep(1000)
            os._exit(5)
        """
        candidate = bench.load(body(code))
        with pytest.raises(CandidateCrashed, match="code 5"):
            candidate.call(0, timeout_s=30)

    def test_a_bounded_fork_bomb(self, bench, group_exists, healthy):
        code = """
            import os, time
            for _ in range(5):
                os.fork()
            time.sleep(1000)
        """
        candidate = bench.load(body(code))
        with pytest.raises(CandidateTimeout):
            candidate.call(0, timeout_s=SHORT)
        assert not group_exists(candidate.pid)
        assert healthy()


class TestOutput:
    def test_a_hundred_megabytes(self, bench, healthy):
        code = """
            import os
            print("first line", flush=True)
            block = b"x" * 2**20
            for _ in range(100):
                os.write(1, block)
            print("last line")
            return x
        """
        candidate = bench.load(body(code))
        candidate.call(0, timeout_s=60)
        log = candidate.log()
        assert log.startswith("first line\n")
        assert log.endswith("last line\n")
        assert "bytes left out" in log
        assert len(log) < 100_000
        assert healthy()

    def test_a_huge_exception(self, bench):
        candidate = bench.load(body("raise ValueError('x' * 100_000_000)"))
        with pytest.raises(CandidateFailed) as caught:
            candidate.call(0, timeout_s=60)
        assert caught.value.kind == "ValueError"
        assert len(str(caught.value)) + len(caught.value.traceback) < 200_000
        assert candidate.alive

    def test_control_characters_do_not_reach_the_judge_s_terminal(self, bench):
        candidate = bench.load(body("raise ValueError('\\x1b[2J\\x1b]0;owned\\x07')"))
        with pytest.raises(CandidateFailed) as caught:
            candidate.call(0, timeout_s=30)
        assert "\x1b" not in str(caught.value) + caught.value.traceback + caught.value.kind


class TestDescriptors:
    def test_closing_all_of_them(self, bench, healthy):
        candidate = bench.load(body("import os; os.closerange(0, 1000); return x"))
        with pytest.raises(CandidateError) as caught:
            candidate.call(0, timeout_s=30)
        assert isinstance(caught.value, (CandidateCrashed, CandidateMisbehaved))
        assert not candidate.alive
        assert healthy()

    def test_closing_the_channel_and_going_on(self, bench, exists):
        candidate = bench.load(body("import os, time; os.close(3); time.sleep(1000)"))
        with pytest.raises(CandidateMisbehaved, match="closed its channel"):
            candidate.call(0, timeout_s=60)
        assert not exists(candidate.pid)

    @pytest.mark.parametrize(
        "junk", [b"x", b"FIB", b"junk" * 1000, b"\0" * 64, b"FIBC" + b"\xff" * 8]
    )
    def test_garbage_in_every_descriptor(self, bench, healthy, junk):
        code = f"""
            import os
            for fd in range(256):
                try: os.write(fd, {junk!r})
                except OSError: pass
            return x
        """
        candidate = bench.load(body(code))
        with pytest.raises(CandidateMisbehaved):
            candidate.call(0, timeout_s=30)
        assert not candidate.alive
        assert healthy()

    def test_a_gigabyte_of_garbage(self, bench):
        """The judge stops reading at the first byte that is wrong."""
        code = "import os\nwhile True: os.write(3, b'FIBB' + b'x' * 2**20)"
        candidate = bench.load(body(code))
        with pytest.raises(CandidateMisbehaved):
            candidate.call(0, timeout_s=30)

    @pytest.mark.parametrize(
        ("message", "why"),
        [
            ('{"type": "Done", "token": 1}', "another request"),
            ('{"type": "Ready", "token": 0}', "another request"),
            ('{"type": "Passed"}', "invalid message"),
            ("not json", "invalid message"),
            ("", "invalid message"),
        ],
    )
    def test_a_forged_answer(self, bench, message, why):
        code = f"""
            import os, struct
            text = {message!r}.encode()
            os.write(3, struct.pack("<3scQ", b"FIB", b"C", len(text)) + text)
            return x
        """
        candidate = bench.load(body(code))
        with pytest.raises(CandidateMisbehaved, match=why):
            candidate.call(0, timeout_s=30)

    def test_an_announcement_that_is_not_kept(self, bench):
        code = """
            import os, struct, time
            os.write(3, struct.pack("<3scQ", b"FIB", b"C", 1000) + b"{")
            time.sleep(1000)
        """
        candidate = bench.load(body(code))
        with pytest.raises(CandidateTimeout):
            candidate.call(0, timeout_s=SHORT)


def test_removing_its_folder(bench):
    code = "import os, shutil; shutil.rmtree(os.getcwd()); return x"
    candidate = bench.load(body(code))
    candidate.call(0, timeout_s=30)
    candidate.close()


def test_memory_beyond_a_limit_is_an_ordinary_failure(bench):
    code = """
        import resource, torch
        resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))
        torch.ones(2**31)
    """
    candidate = bench.load(body(code))
    with pytest.raises(CandidateFailed, match=r"memory|alloc"):
        candidate.call(0, timeout_s=30)


def test_it_is_the_first_to_go_when_memory_runs_out(bench):
    code = "return int(open('/proc/self/oom_score_adj').read())"
    assert bench.load(body(code)).call(0, timeout_s=30) == [1000]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE])
def test_signals_to_the_whole_group_reach_neither_server_nor_judge(bench, healthy, number):
    candidate = bench.load(body(f"import os; os.killpg(0, {int(number)}); return x"))
    with contextlib.suppress(CandidateError):
        candidate.call(0, timeout_s=30)
    assert healthy()
