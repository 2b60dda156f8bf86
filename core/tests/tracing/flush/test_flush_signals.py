"""Signals: everything is written, then the program's own wish is done."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from flashinfer_bench.errors import ConfigError
from flashinfer_bench.tracing import shutdown, signals
from flashinfer_bench.tracing.signals import (
    held_back,
    install_signal_handlers,
    uninstall_signal_handlers,
)

WAIT = """
    at_shutdown(flush)
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


def signalled(program, script, number, code):
    process = program.start(script)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    return program.finish(process, code)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_default_is_done_after_writing(program, number):
    _, err = signalled(program, wait(), number, -number)
    assert program.written() == ["1"]
    assert ("KeyboardInterrupt" in err) is (number is signal.SIGINT)


def test_without_the_handlers_it_is_lost(program):
    script = wait().replace("install_signal_handlers()", "pass")
    signalled(program, script, signal.SIGTERM, -signal.SIGTERM)
    assert program.written() == []


def test_the_engines_own_handler_is_called_once(program):
    before = """
    def stop(number, frame):
        print("engine", number, frame is not None, flush=True)
        sys.exit(7)
    signal.signal(signal.SIGTERM, stop)
    """
    out, _ = signalled(program, wait(before), signal.SIGTERM, 7)
    assert out == f"engine {int(signal.SIGTERM)} True\n"
    assert program.written() == ["1"]


def test_an_ignored_signal_stays_ignored(program):
    process = program.start(wait("signal.signal(signal.SIGTERM, signal.SIG_IGN)"))
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    program.finish(process, -signal.SIGINT)
    assert program.written() == ["1"]


def test_an_engine_that_sets_its_own_later(program):
    after = """
    def stop(number, frame):
        chained(number, frame)
    chained = signal.signal(signal.SIGTERM, stop)
    """
    signalled(program, wait(after=after), signal.SIGTERM, -signal.SIGTERM)
    assert program.written() == ["1"]


def test_an_asyncio_engine(program):
    script = """
    import asyncio
    async def main():
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        install_signal_handlers()
        os.write(1, b"ready\\n")
        await stop.wait()
        print("stopped", *Path(sys.argv[1]).read_text().split())
    at_shutdown(flush)
    left.append(1)
    asyncio.run(main())
    """
    out, _ = signalled(program, script, signal.SIGTERM, 0)
    assert out == "stopped 1\n"  # it was written before the engine heard of it


def test_a_flush_that_hangs_does_not_hold_the_program(program):
    before = """
    from flashinfer_bench.tracing import signals
    signals.FLUSH_TIMEOUT_S = 0.2
    at_shutdown(lambda: time.sleep(600))
    """
    _, err = signalled(program, wait(before), signal.SIGTERM, -signal.SIGTERM)
    assert "not written within 0.2 s" in err


def test_a_flush_that_needs_a_lock_of_the_main_thread(program):
    """The main thread is interrupted while it holds the lock: no deadlock."""
    script = """
    from flashinfer_bench.tracing import signals
    signals.FLUSH_TIMEOUT_S = 0.2
    lock = threading.Lock()
    def locked_flush():
        with lock:
            flush()
    at_shutdown(locked_flush)
    left.append(1)
    install_signal_handlers()
    with lock:
        os.write(1, b"ready\\n")
        time.sleep(60)
    """
    signalled(program, script, signal.SIGTERM, -signal.SIGTERM)


def test_the_same_with_signals_held_back(program):
    script = """
    lock = threading.Lock()
    def locked_flush():
        with held_back(), lock:
            flush()
    at_shutdown(locked_flush)
    left.append(1)
    install_signal_handlers()
    with held_back(), lock:
        os.write(1, b"ready\\n")
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            time.sleep(0.01)
        left.append(2)
    """
    signalled(program, script, signal.SIGTERM, -signal.SIGTERM)
    assert program.written() == ["1", "2"]


def test_a_second_signal_is_in_a_hurry(program):
    before = """
    def slow():
        os.write(1, b"writing\\n")
        time.sleep(600)
    at_shutdown(slow)
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
    at_shutdown(flush)
    install_signal_handlers()
    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    while not left:
        time.sleep(0.05)
        left += out.with_suffix(".ready").exists() * [1]
    left.clear()
    worker.terminate()
    worker.join()
    print(worker.exitcode)
    """
    out, _ = program.run(script)
    assert out.split() == [str(-signal.SIGTERM)]
    assert program.written() == ["worker"]


def test_signals_during_a_store_lose_nothing(program):
    """The main thread is writing all the time: what was accepted is on disk, nothing is torn."""
    script = """
    root = out.parent / "dataset"
    root.mkdir(exist_ok=True)
    from dataclasses import dataclass
    from flashinfer_bench.data import Definition
    from flashinfer_bench.tracing.store import Store
    definition = Definition(
        name="d", op_type="op", axes={"M": {"type": "var"}},
        inputs={"x": {"shape": ["M"], "dtype": "float32"}},
        outputs={"y": {"shape": ["M"], "dtype": "float32"}},
        reference="def run(x):\\n    return x\\n",
    )
    @dataclass
    class Call:
        axes: dict
        def_name: str = "d"
        def values(self):
            return {}
    store = Store(root, {"d": definition})
    def write():
        if left:
            store.add([Call({"M": left.pop()})])
    at_shutdown(write)
    install_signal_handlers()
    number = 0
    os.write(1, b"ready\\n")
    while True:
        number += 1
        left.append(number)
        write()
        print(number, flush=True)
    """
    process = program.start(script)
    assert process.stdout.readline() == b"ready\n"
    for _ in range(20):
        reported = int(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    rest, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM, err.decode()
    reported = max([reported, *map(int, rest.split())])
    text = (program.out.parent / "dataset" / "workloads" / "op" / "d.jsonl").read_text()
    assert text.endswith("\n")
    assert text.count("\n") >= reported
    assert text.count('"uuid"') == text.count("\n")


# ---------------------------------------------------------------------------- in this process


@pytest.fixture
def restored():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)
    signals._handlers.clear()


@pytest.fixture
def flushes():
    seen = []
    cancel = shutdown.at_shutdown(lambda: seen.append(threading.current_thread().name))
    yield seen
    cancel()


def test_uninstalling_puts_back_the_very_handler(restored):
    def own(number, frame):
        return None

    signal.signal(signal.SIGUSR1, own)
    uninstall = install_signal_handlers([signal.SIGUSR1])
    assert uninstall is uninstall_signal_handlers
    assert signal.getsignal(signal.SIGUSR1) is not own
    uninstall()
    assert signal.getsignal(signal.SIGUSR1) is own
    uninstall()


def test_installing_twice_flushes_once(restored, flushes):
    heard = []
    signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
    install_signal_handlers([signal.SIGUSR1])
    install_signal_handlers([signal.SIGUSR1])
    signal.raise_signal(signal.SIGUSR1)
    assert heard == [1]
    assert flushes == ["fib-tracing-flush"]
    uninstall_signal_handlers()
    signal.raise_signal(signal.SIGUSR1)
    assert (heard, len(flushes)) == ([1, 1], 1)


def test_a_handler_that_was_set_since_stays(restored, flushes):
    heard = []
    signal.signal(signal.SIGUSR1, lambda *_: heard.append("first"))
    install_signal_handlers([signal.SIGUSR1])
    ours = signal.getsignal(signal.SIGUSR1)

    def later(number, frame):
        heard.append("later")
        ours(number, frame)

    signal.signal(signal.SIGUSR1, later)
    uninstall_signal_handlers()
    assert signal.getsignal(signal.SIGUSR1) is later
    signal.raise_signal(signal.SIGUSR1)
    assert heard == ["later", "first"]  # ours only passes it on
    assert flushes == []


def test_what_the_engines_handler_raises_goes_on(restored, flushes):
    def stop(number, frame):
        raise SystemExit(3)

    signal.signal(signal.SIGUSR1, stop)
    install_signal_handlers([signal.SIGUSR1])
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGUSR1)
    assert len(flushes) == 1


def test_only_in_the_main_thread(restored):
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
    assert signal.getsignal(signal.SIGTERM) is restored[signal.SIGTERM]


@pytest.mark.parametrize("number", [signal.SIGKILL, 0, 12345])
def test_signals_that_cannot_be_handled(restored, number):
    with pytest.raises(ConfigError, match=f"signal {int(number)} cannot be handled"):
        install_signal_handlers([number])


def test_nothing_is_done_where_it_is_ignored(restored):
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    install_signal_handlers([signal.SIGUSR1])
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN


def test_held_back_signals_come_afterwards_in_their_order(restored, flushes):
    heard = []
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, _: heard.append(number))
    install_signal_handlers([signal.SIGUSR1, signal.SIGTERM])
    with held_back():
        with held_back():
            signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGTERM)
        assert heard == []
    assert heard == [signal.SIGUSR1, signal.SIGTERM]
    assert len(flushes) == 2


def test_held_back_and_an_error(restored):
    heard = []
    signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
    install_signal_handlers([signal.SIGUSR1])

    def fail():
        with held_back():
            signal.raise_signal(signal.SIGUSR1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert heard == [1]


def test_held_back_and_uninstalled_meanwhile(restored):
    heard = []
    signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
    install_signal_handlers([signal.SIGUSR1])
    with held_back():
        signal.raise_signal(signal.SIGUSR1)
        uninstall_signal_handlers()
    assert heard == [1]


def test_other_threads_hold_nothing_back(restored):
    heard, entered, leave = [], threading.Event(), threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
    install_signal_handlers([signal.SIGUSR1])

    def hold():
        with held_back():
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait(30)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert heard == [1]
    leave.set()
    thread.join()
