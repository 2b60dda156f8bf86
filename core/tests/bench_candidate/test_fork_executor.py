"""What a solution that behaves gets, and what the judge gets back, through the fork server."""

from pathlib import Path

import pytest
import torch

from flashinfer_bench.bench.executors.base import CandidateFailed

X, Y = torch.arange(8.0), torch.ones(8)
ADD = "def run(x, y):\n    return x + y\n"


def call(candidate):
    return candidate.call(0, timeout_s=30)


class TestLoad:
    def test_a_process_takes_one_solution_only(self, bench, definition_of, solution_of):
        candidate = bench.load(ADD)
        with pytest.raises(ValueError, match="already holds a solution"):
            candidate.load(definition_of(), solution_of(ADD), timeout_s=30)
        assert torch.equal(call(candidate)[0], X + Y)

    @pytest.mark.parametrize(
        ("code", "needle"),
        [
            ("raise SystemExit(0)\n", "SystemExit"),
            ("raise KeyboardInterrupt\n", "KeyboardInterrupt"),
            ("raise MemoryError\n", "MemoryError"),
            ("def run(x): ...\n", "run"),
        ],
    )
    def test_failures(self, bench, definition_of, solution_of, code, needle):
        candidate = bench.spawn()
        with pytest.raises(CandidateFailed, match=needle) as caught:
            candidate.load(definition_of(), solution_of(code), timeout_s=30)
        assert caught.value.stage == "load"
        assert candidate.alive


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("raise ValueError('no')", "ValueError"),
        ("return 1 / 0", "ZeroDivisionError"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("bytearray(2**60)", "MemoryError"),
        ("return x.reshape(3, 3)", "RuntimeError"),
        ("return 'text'", "TypeError"),
        ("return [x, None]", "TypeError"),
        ("return {'wrong': x}", "ValueError"),
        ("return 2**70", "OverflowError"),
        ("return [x] * 300", "TypeError"),
        ("return x.to_sparse()", "TypeError"),
    ],
)
def test_failures_in_a_call_leave_the_process_usable(bench, body, kind):
    candidate = bench.load(f"def run(x, y):\n    if x[0] == 0: {body}\n    return x + y\n")
    with pytest.raises(CandidateFailed) as caught:
        call(candidate)
    assert (caught.value.kind, caught.value.stage) == (kind, "call")
    assert candidate.alive
    candidate.put_inputs(0, [X + 1, Y], {"n": 8}, timeout_s=30)
    assert torch.equal(call(candidate)[0], X + 1 + Y)


class TestInputs:
    def test_the_judge_s_tensors_are_out_of_reach(self, bench):
        mine = X.clone()
        candidate = bench.load("def run(x, y):\n    x.zero_()\n    return y\n", values=[mine, Y])
        call(candidate)
        assert torch.equal(mine, X)

    def test_slots_hold_different_inputs(self, bench):
        candidate = bench.load(ADD)
        candidate.put_inputs(3, [X * 10, Y], {"n": 8}, timeout_s=30)
        assert torch.equal(candidate.call(3, timeout_s=30)[0], X * 10 + Y)
        assert torch.equal(candidate.call(0, timeout_s=30)[0], X + Y)


class TestTime:
    @pytest.mark.parametrize(
        ("timer", "needle"), [("sundial", "sundial"), ("broken", "this clock has stopped")]
    )
    def test_a_timer_that_cannot_be_used(self, bench, timer, needle):
        with pytest.raises(CandidateFailed, match=needle):
            bench.time(bench.load(ADD), timer=timer)

    def test_the_solution_cannot_replace_the_clock_by_patching_time(self, bench):
        code = """
            import time
            time.perf_counter_ns = time.monotonic_ns = time.time_ns = lambda: 0
            def run(x, y):
                time.sleep(0.002)
                return x
        """
        assert min(fired.sample_ms for fired in bench.time(bench.load(code), 4)) >= 2.0


def test_output_of_python_c_and_subprocesses(bench):
    code = """
        import ctypes, os, subprocess, sys
        print("while loading")
        def run(x, y):
            print("from print")
            print("to stderr", file=sys.stderr)
            ctypes.CDLL(None).puts(b"from C")
            subprocess.run(["echo", "from a subprocess"])
            os.write(1, b"to the descriptor\\n")
            return x
    """
    candidate = bench.load(code)
    call(candidate)
    lines = candidate.log().splitlines()
    assert lines[0] == "while loading"
    assert {
        "from print", "to stderr", "from C", "from a subprocess", "to the descriptor"
    } <= set(lines)  # fmt: skip


class TestSurroundings:
    def test_alone_in_an_empty_folder_of_its_own(self, bench):
        code = """
            import os, tempfile
            from pathlib import Path
            def run(x, y):
                assert tempfile.gettempdir() == os.getcwd() == os.environ["TMPDIR"]
                assert __file__.startswith(os.getcwd() + os.sep)
                Path("left/behind").mkdir(parents=True)
                Path("left/behind/file").write_text("x")
                tempfile.mkstemp()
                print(os.getcwd())
                return x
        """
        first, second = bench.load(code), bench.load(code)
        call(first), call(second)
        folders = [Path(candidate.log().strip()) for candidate in (first, second)]
        assert folders[0] != folders[1]
        assert all(folder.is_dir() for folder in folders)
        first.close()
        second.close()
        assert not any(folder.exists() for folder in folders)

    def test_leads_a_session_and_holds_four_descriptors(self, bench):
        code = """
            import os
            from pathlib import Path
            def run(x, y):
                assert os.getsid(0) == os.getpgrp() == os.getpid()
                fds = {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
                assert len([fd for fd in fds if os.path.exists(f"/proc/self/fd/{fd}")]) == 4, fds
                return x
        """
        call(bench.load(code))

    def test_what_it_starts_does_not_inherit_the_channel(self, bench):
        code = """
            import subprocess
            def run(x, y):
                print(subprocess.check_output("ls /proc/self/fd", shell=True, close_fds=False))
                return x
        """
        candidate = bench.load(code)
        call(candidate)
        assert r"b'0\n1\n2\n3\n'" in candidate.log()  # 3: the listing itself

    def test_signals_are_as_in_a_fresh_process(self, bench):
        code = """
            import signal
            def run(x, y):
                assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
                for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP):
                    assert signal.getsignal(number) == signal.SIG_DFL
                assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
                assert signal.set_wakeup_fd(-1) == -1
                return x
        """
        call(bench.load(code))

    def test_the_judge_s_packages_are_not_loaded(self, bench):
        code = """
            import sys
            def run(x, y):
                ours = [name for name in sys.modules if name.startswith("flashinfer_bench.")]
                assert not [n for n in ours if "judge" in n or "executors" in n], ours
                return x
        """
        call(bench.load(code))

    def test_what_builders_have_preloaded_is_there_and_no_gpu_is_seen(self, bench):
        code = """
            import os, sys
            def run(x, y):
                assert "xmlrpc.client" in sys.modules and "xmlrpc.server" not in sys.modules
                assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
                return x
        """
        call(bench.load(code))

    def test_candidates_share_nothing_that_they_change(self, bench):
        code = """
            import os, torch
            def run(x, y):
                seen = os.environ.get("LEFT"), getattr(torch, "left", None)
                os.environ["LEFT"] = torch.left = "behind"
                assert seen == (None, None), seen
                return x
        """
        for _ in range(2):
            call(bench.load(code))

    def test_the_fork_server_has_one_thread(self, server_executor):
        server = server_executor._runs.server
        assert len(list(Path(f"/proc/{server.pid}/task").iterdir())) == 1
