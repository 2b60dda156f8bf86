"""What is in memory is written before a process ends, and on signals if that is asked for."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from textwrap import dedent

import pytest

from flashinfer_bench.errors import ConfigError
from flashinfer_bench.tracing.shutdown import (
    flush_at_exit,
    held_back,
    install_signal_handlers,
    uninstall_signal_handlers,
)

START = """
import os, signal, sys, threading, time
from pathlib import Path
from flashinfer_bench.tracing import shutdown
from flashinfer_bench.tracing.shutdown import (
    flush_all, flush_at_exit, held_back, install_signal_handlers
)

out = Path(sys.argv[1])
left = []

class Runtime:
    def flush(self):
        while left:
            with out.open("a") as file:
                file.write(f"{left.pop(0)}\\n")

runtime = Runtime()
"""


class Program:
    """Runs scripts whose first lines are those above, from a file, as spawning needs one."""

    def __init__(self, folder):
        self._folder = folder
        self.out = folder / "written"

    def start(self, script, *args):
        path = self._folder / "program.py"
        path.write_text(START + dedent(script))
        command = [sys.executable, str(path), str(self.out), *map(str, args)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    @staticmethod
    def finish(process, code=0):
        out, err = process.communicate(timeout=600)
        assert process.returncode == code, err.decode()
        return out.decode(), err.decode()

    def run(self, script, *args, code=0):
        return self.finish(self.start(script, *args), code)

    def signalled(self, script, number, code):
        process = self.start(script)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        return self.finish(process, code)

    def written(self):
        return self.out.read_text().split() if self.out.exists() else []


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path)


# --------------------------------------------------------------------------------- at the end


@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("sys.exit(3)", 3), ("raise RuntimeError('x')", 1), ("raise KeyboardInterrupt", -2)],
)
def test_a_program_that_ends(program, end, code):
    _, err = program.run(f"flush_at_exit(runtime)\nleft += [1, 2]\n{end}\n", code=code)
    assert program.written() == ["1", "2"]
    assert "flush" not in err


WORKERS = """
    import multiprocessing

    def work(number):
        if start != "fork":
            flush_at_exit(runtime)
        left[:] = [number]
        if number == 2:
            raise RuntimeError("a worker that fails")

    start = sys.argv[2]
    if __name__ == "__main__":
        flush_at_exit(runtime)
        context = multiprocessing.get_context(start)
        left.append("parent")
        workers = [context.Process(target=work, args=(number,)) for number in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        print(*(worker.exitcode for worker in workers))
"""


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_workers(program, start):
    """They end by os._exit, which runs nothing of atexit."""
    assert program.run(WORKERS, start)[0] == "0 0 1\n"
    assert sorted(program.written()) == ["0", "1", "2", "parent"]


# ------------------------------------------------------------------------------------- signals

WAIT = """
    flush_at_exit(runtime)
    left.append(1)
    {before}
    install_signal_handlers()
    os.write(1, b"ready\\n")  # no print: the signal may come before it returns
    {after}
    while True:
        time.sleep(0.01)
"""


def wait(before="", after=""):
    return WAIT.format(before=before, after=after)


def test_the_engines_own_handler_is_called_once(program):
    before = """
    def stop(number, frame):
        print("engine", number, frame is not None, flush=True)
        sys.exit(7)
    signal.signal(signal.SIGTERM, stop)
    """
    out, _ = program.signalled(wait(before), signal.SIGTERM, 7)
    assert out == f"engine {int(signal.SIGTERM)} True\n"
    assert program.written() == ["1"]


def test_a_flush_that_needs_a_lock_of_the_main_thread(program):
    """The main thread is interrupted while it holds the lock: it is not waited for forever."""
    script = """
    shutdown.FLUSH_TIMEOUT_S = 0.2
    lock = threading.Lock()
    class Locked:
        def flush(self):
            with lock:
                runtime.flush()
    locked = Locked()
    flush_at_exit(locked)
    install_signal_handlers()
    with lock:
        os.write(1, b"ready\\n")
        time.sleep(60)
    """
    _, err = program.signalled(script, signal.SIGTERM, -signal.SIGTERM)
    assert "not written within 0.2 s" in err


def test_a_second_signal_is_in_a_hurry(program):
    before = """
    class Slow:
        def flush(self):
            os.write(1, b"writing\\n")
            time.sleep(600)
    slow = Slow()
    flush_at_exit(slow)
    """
    process = program.start(wait(before))
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == b"writing\n"
    process.send_signal(signal.SIGTERM)
    program.finish(process, -signal.SIGTERM)


def test_a_worker_that_is_terminated(program):
    script = """
    import multiprocessing
    def work():
        left[:] = ["worker"]
        out.with_suffix(".ready").touch()
        time.sleep(60)
    flush_at_exit(runtime)
    install_signal_handlers()
    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    while not out.with_suffix(".ready").exists():
        time.sleep(0.05)
    worker.terminate()
    worker.join()
    print(worker.exitcode)
    """
    out, _ = program.run(script)
    assert out.split() == [str(-signal.SIGTERM)]
    assert program.written() == ["worker"]


# ---------------------------------------------------------------------------- in this process


@pytest.fixture
def heard():
    """What the program's own handler of SIGUSR1 was told."""
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    heard = []
    for number in numbers:
        signal.signal(number, lambda number, _: heard.append(number))
    yield heard
    uninstall_signal_handlers()
    for number, handler in before.items():
        signal.signal(number, handler)


class Flushes(list):
    def flush(self):
        self.append(threading.current_thread().name)

    __hash__ = object.__hash__


@pytest.fixture
def flushes():
    seen = Flushes()
    flush_at_exit(seen)
    return seen


def test_installing_twice_flushes_once_and_uninstalling_puts_back_the_very_handler(heard, flushes):
    own = signal.getsignal(signal.SIGUSR1)
    assert install_signal_handlers([signal.SIGUSR1]) is uninstall_signal_handlers
    install_signal_handlers([signal.SIGUSR1])
    signal.raise_signal(signal.SIGUSR1)
    assert heard == [signal.SIGUSR1]
    assert flushes == ["fib-tracing-flush"]
    uninstall_signal_handlers()
    uninstall_signal_handlers()
    assert signal.getsignal(signal.SIGUSR1) is own


def test_a_handler_that_the_engine_has_set_since_stays(heard, flushes):
    install_signal_handlers([signal.SIGUSR1])
    ours = signal.getsignal(signal.SIGUSR1)

    def later(number, frame):
        heard.append("later")
        ours(number, frame)

    signal.signal(signal.SIGUSR1, later)
    uninstall_signal_handlers()
    assert signal.getsignal(signal.SIGUSR1) is later
    signal.raise_signal(signal.SIGUSR1)
    assert (heard, flushes) == (["later", signal.SIGUSR1], [])  # ours only passes it on


def test_only_in_the_main_thread(heard):
    errors = []

    def install():
        for function in (install_signal_handlers, uninstall_signal_handlers):
            try:
                function()
            except ConfigError as error:
                errors.append(str(error))

    thread = threading.Thread(target=install)
    thread.start()
    thread.join()
    assert len(errors) == 2
    assert "only be set in the main thread" in errors[0]


@pytest.mark.parametrize("number", [signal.SIGKILL, 0, 12345])
def test_signals_that_cannot_be_handled(number):
    with pytest.raises(ConfigError, match=f"signal {int(number)} cannot be handled"):
        install_signal_handlers([number])


def test_an_ignored_signal_stays_ignored(heard):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    install_signal_handlers([signal.SIGUSR1])
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN


def test_held_back_signals_come_afterwards_in_their_order(heard, flushes):
    install_signal_handlers([signal.SIGUSR1, signal.SIGTERM])

    def fail():
        with held_back():
            with held_back():
                signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGTERM)
            assert heard == []
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert heard == [signal.SIGUSR1, signal.SIGTERM]
    assert len(flushes) == 2
    with held_back():
        signal.raise_signal(signal.SIGUSR1)
        uninstall_signal_handlers()
    assert len(heard) == 3
