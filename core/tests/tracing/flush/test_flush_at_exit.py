"""What is in memory is written before a process ends, whatever kind of process it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flashinfer_bench.tracing import shutdown


def test_a_program_that_ends(program):
    program.run("at_shutdown(flush)\nleft += [1, 2]\n")
    assert program.written() == ["1", "2"]


@pytest.mark.parametrize(
    ("end", "code"),
    [("sys.exit(3)", 3), ("raise RuntimeError('x')", 1), ("raise KeyboardInterrupt", -2)],
)
def test_a_program_that_ends_badly(program, end, code):
    _, err = program.run(f"at_shutdown(flush)\nleft.append(1)\n{end}\n", code=code)
    assert program.written() == ["1"]
    assert "flush" not in err


def test_an_exit_without_a_farewell_loses_it(program):
    program.run("at_shutdown(flush)\nleft.append(1)\nos._exit(0)\n")
    assert program.written() == []


def test_a_thread_that_is_still_at_work(program):
    program.run(
        """
        at_shutdown(flush)
        threading.Thread(target=lambda: (time.sleep(0.2), left.append("late"))).start()
        left.append("early")
        """
    )
    assert program.written() == ["early", "late"]  # the interpreter waits for its threads


def test_a_daemon_thread_that_never_ends(program):
    program.run(
        """
        at_shutdown(flush)
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        left.append(1)
        """
    )
    assert program.written() == ["1"]


def test_a_flush_that_fails_changes_nothing(program):
    out, err = program.run(
        """
        def fail():
            raise OSError("the disk is full")
        at_shutdown(fail)
        at_shutdown(flush)
        left.append(1)
        print("the end")
        """
    )
    assert out == "the end\n"
    assert program.written() == ["1"]
    assert err.count("recorded workloads could not be written") == 1


def test_a_flush_while_nothing_can_be_said_any_more(program):
    _, err = program.run(
        """
        def fail():
            raise OSError("the disk is full")
        at_shutdown(fail)
        at_shutdown(flush)
        left.append(1)
        sys.stderr.close()
        sys.stdout.close()
        """
    )
    assert program.written() == ["1"]
    assert err == ""


def test_what_was_taken_back(program):
    program.run(
        """
        cancel = at_shutdown(flush)
        left.append(1)
        cancel()
        cancel()
        """
    )
    assert program.written() == []


def test_in_the_order_in_which_they_were_added(program):
    program.run(
        """
        at_shutdown(lambda: left.append("first"))
        at_shutdown(lambda: left.append("second"))
        at_shutdown(flush)
        """
    )
    assert program.written() == ["first", "second"]


def test_what_is_added_during_the_flush(program):
    program.run(
        """
        at_shutdown(lambda: at_shutdown(flush))
        left.append(1)
        flush_all()
        """
    )
    assert program.written() == ["1"]


def test_importing_it_registers_nothing():
    script = """
        import atexit, logging, signal
        before = atexit._ncallbacks(), signal.getsignal(signal.SIGTERM)
        import multiprocessing.util
        known = atexit._ncallbacks()
        import flashinfer_bench.tracing.shutdown, flashinfer_bench.tracing.signals
        assert atexit._ncallbacks() == known
        assert signal.getsignal(signal.SIGTERM) is before[1]
        import sys
        assert "torch" not in sys.modules
    """
    import textwrap

    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


# ------------------------------------------------------------------------------------- workers


WORKERS = """
    import multiprocessing

    def work(number):
        if start == "spawn":
            at_shutdown(flush)
        left.clear()
        left.append(number)
        if number == 2:
            raise RuntimeError("a worker that fails")

    start = sys.argv[2]
    if __name__ == "__main__":
        at_shutdown(flush)
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
    if start == "forkserver":
        script = WORKERS.replace('if start == "spawn":', 'if start != "fork":')
    else:
        script = WORKERS
    out, _ = program.run(script, start)
    assert out == "0 0 1\n"
    assert sorted(program.written()) == ["0", "1", "2", "parent"]


def test_workers_of_workers(program):
    program.run(
        """
        import multiprocessing
        context = multiprocessing.get_context("fork")

        def work(depth):
            left[:] = [depth]
            if depth < 3:
                inner = context.Process(target=work, args=(depth + 1,))
                inner.start()
                inner.join()

        at_shutdown(flush)
        work(0)
        """
    )
    assert program.written() == ["3", "2", "1", "0"]


def test_a_worker_that_is_the_first_to_trace(program):
    program.run(
        """
        import multiprocessing

        def work():
            at_shutdown(flush)
            left.append("worker")

        worker = multiprocessing.get_context("fork").Process(target=work)
        worker.start()
        worker.join()
        """
    )
    assert program.written() == ["worker"]


def test_a_process_that_was_forked_by_hand(program):
    program.run(
        """
        at_shutdown(flush)
        left.append("parent")
        pid = os.fork()
        if pid == 0:
            left[:] = ["child"]
            sys.exit(0)
        os.waitpid(pid, 0)
        """
    )
    assert program.written() == ["child", "parent"]


def test_pools(program):
    program.run(
        """
        import multiprocessing

        def work(number):
            left.append(number)
            return number

        at_shutdown(flush)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert sum(pool.map(work, range(8))) == 28
            pool.close()
            pool.join()
        """
    )
    assert sorted(program.written()) == [str(number) for number in range(8)]


# ----------------------------------------------------------------------------- in this process


def test_flush_all_by_hand():
    seen = []
    cancel = shutdown.at_shutdown(lambda: seen.append(1))
    try:
        shutdown.flush_all()
        shutdown.flush_all()
    finally:
        cancel()
    shutdown.flush_all()
    assert seen == [1, 1]


def test_ctrl_c_during_a_flush_goes_on():
    def interrupt():
        raise KeyboardInterrupt

    cancel = shutdown.at_shutdown(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            shutdown.flush_all()
    finally:
        cancel()
