"""What a solution that behaves gets, and what the judge gets back, through the fork server."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path

import pytest
import torch

from flashinfer_bench.bench.executors import probes
from flashinfer_bench.bench.executors.base import CandidateFailed
from flashinfer_bench.bench.executors.fork import ForkExecutor

X, Y = torch.arange(8.0), torch.ones(8)
ADD = "def run(x, y):\n    return x + y\n"
SCALAR = {"outputs": {"z": {"shape": None, "dtype": "float32"}}}
TWO = {
    "outputs": {
        "total": {"shape": ["n"], "dtype": "float32"},
        "count": {"shape": [], "dtype": "int64"},
    }
}


def call(candidate):
    return candidate.call(0, timeout_s=30)


class TestLoad:
    def test_tells_about_the_build(self, bench, definition_of, solution_of):
        loaded = bench.spawn().load(definition_of(), solution_of(ADD), timeout_s=30)
        assert loaded.build_type == "inline"
        assert loaded.destination_passing_style is False
        assert loaded.seconds > 0

    def test_destination_passing(self, bench, definition_of, solution_of):
        code = "def run(x, y, z):\n    z.copy_(x + y)\n"
        loaded = bench.spawn().load(definition_of(), solution_of(code, dps=True), timeout_s=30)
        assert loaded.destination_passing_style is True

    def test_a_process_takes_one_solution_only(self, bench, definition_of, solution_of):
        candidate = bench.load(ADD)
        with pytest.raises(ValueError, match="already holds a solution"):
            candidate.load(definition_of(), solution_of(ADD), timeout_s=30)
        assert torch.equal(call(candidate)[0], X + Y)

    @pytest.mark.parametrize(
        ("code", "needle"),
        [
            ("def run(x, y:\n", "SyntaxError"),
            ("import no_such_module_anywhere\ndef run(x, y): ...\n", "no_such_module_anywhere"),
            ("def walk(x, y): ...\n", "run"),
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


class TestCall:
    def test_returns_the_outputs(self, bench):
        (z,) = call(bench.load(ADD))
        assert torch.equal(z, X + Y)

    def test_destination_passing(self, bench):
        (z,) = call(bench.load("def run(x, y, z):\n    z.copy_(x + y)\n", dps=True))
        assert torch.equal(z, X + Y)

    def test_outputs_are_poisoned_before_each_call(self, bench):
        candidate = bench.load("def run(x, y, z):\n    z[:4] = x[:4]\n", dps=True)
        for _ in range(2):
            (z,) = call(candidate)
            assert torch.equal(z[:4], X[:4])
            assert z[4:].isnan().all()

    @pytest.mark.parametrize(
        "body",
        [
            "return x + y, x.numel()",
            "return [x + y, x.numel()]",
            "return {'count': x.numel(), 'total': x + y}",
        ],
    )
    def test_several_outputs(self, bench, body):
        total, count = call(bench.load(f"def run(x, y):\n    {body}\n", **TWO))
        assert torch.equal(total, X + Y)
        assert count == 8

    def test_several_outputs_destination_passing(self, bench):
        code = "def run(x, y, total, count):\n    total.copy_(x + y)\n    count.fill_(8)\n"
        total, count = call(bench.load(code, dps=True, **TWO))
        assert torch.equal(total, X + Y)
        assert count.item() == 8

    @pytest.mark.parametrize(
        ("expression", "value"),
        [("3", 3), ("2.5", 2.5), ("True", True), ("float('inf')", math.inf)],
    )
    def test_scalars(self, bench, expression, value):
        (got,) = call(bench.load(f"def run(x, y):\n    return {expression}\n", **SCALAR))
        assert type(got) is type(value)
        assert got == value

    @pytest.mark.parametrize(
        ("body", "count"),
        [("return None", 0), ("return ()", 0), ("return (x,)", 1), ("return x, y, x", 3)],
    )
    def test_the_number_of_outputs_is_for_the_judge_to_check(self, bench, body, count):
        assert len(call(bench.load(f"def run(x, y):\n    {body}\n"))) == count

    def test_shape_and_dtype_are_for_the_judge_to_check(self, bench):
        (got,) = call(bench.load("def run(x, y):\n    return (x + y).double()[:3, None]\n"))
        assert (got.dtype, tuple(got.shape)) == (torch.float64, (3, 1))

    def test_a_giant_of_a_wrong_shape_comes_without_data(self, bench):
        (got,) = call(bench.load("def run(x, y):\n    return x[:1].expand(2**36)\n"))
        assert (got.device.type, tuple(got.shape)) == ("meta", (2**36,))

    def test_views_come_as_what_they_show(self, bench):
        code = "import torch\ndef run(x, y):\n    return torch.stack([x, y], 1)[:, 0].flip(0)\n"
        (got,) = call(bench.load(code))
        assert torch.equal(got, X.flip(0))

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
    def test_failures_leave_the_process_usable(self, bench, body, kind):
        candidate = bench.load(f"def run(x, y):\n    if x[0] == 0: {body}\n    return x + y\n")
        with pytest.raises(CandidateFailed) as caught:
            call(candidate)
        assert (caught.value.kind, caught.value.stage) == (kind, "call")
        assert candidate.alive
        candidate.put_inputs(0, [X + 1, Y], {"n": 8}, timeout_s=30)
        assert torch.equal(call(candidate)[0], X + 1 + Y)

    def test_the_traceback_shows_the_line(self, bench):
        candidate = bench.load("def run(x, y):\n    return x + undefined_name\n")
        with pytest.raises(CandidateFailed, match="undefined_name") as caught:
            call(candidate)
        assert "main.py" in caught.value.traceback
        assert "line 2" in caught.value.traceback

    def test_a_slot_without_inputs(self, bench):
        candidate = bench.load(ADD)
        with pytest.raises(CandidateFailed, match="slot 5"):
            candidate.call(5, timeout_s=30)

    def test_before_anything_is_loaded(self, bench):
        candidate = bench.spawn()
        candidate.put_inputs(0, [X, Y], {}, timeout_s=30)
        with pytest.raises(CandidateFailed, match="no solution"):
            call(candidate)


class TestInputs:
    def test_slots_hold_different_inputs(self, bench):
        candidate = bench.load(ADD)
        candidate.put_inputs(3, [X * 10, Y], {"n": 8}, timeout_s=30)
        assert torch.equal(candidate.call(3, timeout_s=30)[0], X * 10 + Y)
        assert torch.equal(candidate.call(0, timeout_s=30)[0], X + Y)

    def test_a_slot_can_be_filled_anew_with_another_size(self, bench):
        candidate = bench.load("def run(x, y, z):\n    z.copy_(x + y)\n", dps=True)
        candidate.put_inputs(0, [X[:3], Y[:3]], {"n": 3}, timeout_s=30)
        assert torch.equal(call(candidate)[0], (X + Y)[:3])

    def test_scalars_arrive_as_python_numbers(self, bench):
        code = "def run(x, y):\n    assert type(y) is float, type(y)\n    return x * y\n"
        scalar = {
            "inputs": {
                "x": {"shape": ["n"], "dtype": "float32"},
                "y": {"shape": None, "dtype": "float32"},
            }
        }
        (got,) = call(bench.load(code, values=[X, 2.0], **scalar))
        assert torch.equal(got, X * 2)

    def test_the_judge_s_tensors_are_out_of_reach(self, bench):
        mine = X.clone()
        candidate = bench.load("def run(x, y):\n    x.zero_()\n    return y\n", values=[mine, Y])
        call(candidate)
        assert torch.equal(mine, X)

    def test_tens_of_megabytes_there_and_back(self, bench):
        big = torch.rand(6_000_000)
        candidate = bench.load(ADD, values=[big, big])
        candidate.put_inputs(0, [big, big], {"n": big.numel()}, timeout_s=60)
        assert torch.equal(candidate.call(0, timeout_s=60)[0], big + big)


class TestTime:
    def test_samples_and_timer(self, bench):
        shots = bench.time(bench.load(ADD), 4)
        assert {(shot.timer, shot.timer_version) for shot in shots} == {("cpu", "3")}
        assert all(0 < shot.sample_ms <= (shot.change_s + shot.wall_s) * 1000 for shot in shots)

    def test_each_call_gets_the_inputs_of_its_slot(self, bench):
        code = "def run(x, y):\n    print(int(x[0]), end=' ', flush=True)\n    return x\n"
        candidate = bench.load(code)
        for slot in (1, 2):
            ways = ["fixed"] * 2
            candidate.put_inputs(slot, [X + slot, Y], {"n": 8}, ways=ways, timeout_s=30)
        bench.time(candidate, 5, slots=[1, 2, 0])
        assert candidate.log().split() == ["1", "2", "0", "1", "2"]

    def test_every_call_gets_its_own_poisoned_outputs(self, bench):
        code = """
            kept = []
            def run(x, y, z):
                assert z.isnan().all()
                kept.append(z)
                assert len({t.data_ptr() for t in kept}) == len(kept)
                z.copy_(x)
        """
        bench.time(bench.load(code, dps=True), 7)

    def test_a_failure_while_timing(self, bench):
        code = """
            calls = []
            def run(x, y):
                calls.append(1)
                assert len(calls) < 3
                return x
        """
        candidate = bench.load(code)
        with pytest.raises(CandidateFailed) as caught:
            bench.time(candidate, 4)
        assert (caught.value.kind, caught.value.stage) == ("AssertionError", "time")

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
        assert min(shot.sample_ms for shot in bench.time(bench.load(code), 4)) >= 2.0


class TestLog:
    def test_output_of_python_c_and_subprocesses(self, bench):
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

    def test_output_without_a_newline_is_there_after_the_call(self, bench):
        candidate = bench.load("def run(x, y):\n    print('no newline', end='')\n    return x\n")
        call(candidate)
        assert candidate.log() == "no newline"

    def test_a_solution_that_closes_its_streams(self, bench):
        code = (
            "import sys\ndef run(x, y):\n    sys.stdout.close(); sys.stderr = None\n    return x\n"
        )
        candidate = bench.load(code)
        for _ in range(2):
            assert torch.equal(call(candidate)[0], X)

    def test_it_can_be_read_after_the_end(self, bench):
        candidate = bench.load("print('here')\ndef run(x, y): ...\n")
        candidate.close()
        assert candidate.log() == "here\n"

    def test_reading_standard_input_finds_nothing(self, bench):
        candidate = bench.load("import sys\ndef run(x, y):\n    return len(sys.stdin.read())\n")
        assert call(candidate) == [0]


class TestSurroundings:
    def test_parallel_operations_work_in_a_forked_child(self, bench):
        """They hang if the fork server has ever run one."""
        code = """
            import torch
            torch.set_num_threads(2)
            def run(x, y):
                big = torch.ones(1500, 1500)
                return (big @ big).sum(1)[:8]
        """
        for _ in range(2):
            (got,) = call(bench.load(code))
            assert torch.equal(got, torch.full((8,), 1500.0 * 1500))

    def test_numpy_s_parallel_operations_work_too(self, bench):
        code = """
            import numpy, torch
            def run(x, y):
                big = numpy.ones((600, 600))
                return torch.from_numpy((big @ big)[0, :8]).float()
        """
        (got,) = call(bench.load(code))
        assert torch.equal(got, torch.full((8,), 600.0))

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

    def test_the_fork_server_has_no_cuda_context(self, bench):
        code = "import torch\ndef run(x, y):\n    return torch.cuda.is_initialized()\n"
        assert call(bench.load(code)) == [False]


class TestSeveralAtOnce:
    def test_from_several_threads(self, server_executor, definition_of, solution_of):
        results, errors = [], []

        def work(number):
            try:
                candidate = server_executor.spawn()
                try:
                    code = f"def run(x, y):\n    return x + {number}\n"
                    candidate.load(definition_of(), solution_of(code), timeout_s=60)
                    candidate.put_inputs(0, [X, Y], {"n": 8}, timeout_s=60)
                    for _ in range(3):
                        results.append(torch.equal(candidate.call(0, timeout_s=60)[0], X + number))
                finally:
                    candidate.close()
            except Exception as error:  # noqa: BLE001
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert results == [True] * 18

    def test_candidates_do_not_disturb_each_other(self, bench):
        candidates = [bench.load(f"def run(x, y):\n    return x * {k}\n") for k in range(4)]
        candidates[1].close()
        for k in (0, 2, 3):
            assert torch.equal(call(candidates[k])[0], X * k)


def test_probe():
    assert probes.fork().ok == hasattr(os, "fork")


def test_probe_elsewhere(monkeypatch):
    monkeypatch.setattr(probes.sys, "platform", "darwin")
    answer = probes.fork()
    assert not answer
    assert "spawn" in answer.remedy


def test_start_is_idempotent(server_executor):
    before = server_executor._runs.server.pid
    server_executor.start()
    assert server_executor._runs.server.pid == before
    assert isinstance(server_executor, ForkExecutor)


class TestThreads:
    CODE = "import torch\ndef run(x, y):\n    return x * 0 + torch.get_num_threads()\n"

    def test_one_core_is_left_to_the_judge(self, bench):
        from flashinfer_bench.tensors import cpu_threads

        assert call(bench.load(self.CODE))[0].tolist() == [cpu_threads()] * 8

    def test_the_user_may_ask_for_another_number(
        self, plugin_in_reach, monkeypatch, definition_of, solution_of
    ):
        monkeypatch.setenv("FIB_CPU_THREADS", "3")
        executor = ForkExecutor("cpu")
        try:
            executor.start()
            candidate = executor.spawn()
            candidate.load(definition_of(), solution_of(self.CODE), timeout_s=30)
            candidate.put_inputs(0, [X, Y], {"n": 8}, timeout_s=30)
            assert call(candidate)[0].tolist() == [3.0] * 8
        finally:
            executor.close()
