from __future__ import annotations

import os
import subprocess
import sys

import pytest

from flashinfer_bench.bench.candidate import processes
from flashinfer_bench.bench.candidate.children import kill_strays


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_own_children(sleeper):
    assert sleeper.pid in processes.own_children()


def test_own_children_without_the_kernel_s_list(sleeper, monkeypatch):
    real = processes.Path.read_text

    def read_text(path, *args, **kwargs):
        if path.name == "children":
            raise OSError("no such file")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(processes.Path, "read_text", read_text)
    assert sleeper.pid in processes.own_children()


def test_descendants_are_found_nearest_first():
    shell = "sh -c 'sleep 1000 & echo $!; wait' & wait"
    process = subprocess.Popen(
        ["sh", "-c", shell], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        grandchild = int(process.stdout.readline())
        found = processes.descendants_of(process.pid)
        assert len(found) == 2
        assert found[1] == grandchild
        assert process.pid in processes.descendants_of(os.getpid())
    finally:
        processes.kill_group(process.pid)
        process.wait()
        process.stdout.close()
    assert processes.descendants_of(process.pid) == []


def test_a_process_with_an_odd_name(tmp_path):
    """The kernel shows the name unescaped, in the middle of the numbers."""
    program = tmp_path / "a) 1 (b\n c"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(program), "1000"])
    try:
        assert process.pid in processes.descendants_of(os.getpid())
    finally:
        process.kill()
        process.wait()


def test_kill_group(sleeper):
    processes.kill_group(sleeper.pid)
    assert sleeper.wait(timeout=10) == -9
    processes.kill_group(sleeper.pid)
    processes.kill(sleeper.pid)


def test_threads_are_counted():
    assert processes.thread_count() >= 1


def test_without_proc(monkeypatch):
    def missing(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(processes.Path, "iterdir", missing)
    assert processes.thread_count() == 1
    assert processes.descendants_of(os.getpid()) == []


def in_a_process(code: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def test_die_with_parent_when_it_is_gone_already():
    code = (
        "import os\n"
        "from flashinfer_bench.bench.candidate.processes import die_with_parent\n"
        "die_with_parent(os.getppid())\n"
        "print('parent lives', flush=True)\n"
        "die_with_parent(1 if os.getppid() != 1 else 2)\n"
        "print('not reached')\n"
    )
    done = in_a_process(code)
    assert (done.stdout, done.returncode) == ("parent lives\n", 1)


def test_strays_are_killed_and_the_others_spared():
    code = (
        "import os, subprocess\n"
        "from flashinfer_bench.bench.candidate.processes import adopt_orphans, own_children\n"
        "from flashinfer_bench.bench.candidate.children import kill_strays\n"
        "assert adopt_orphans()\n"
        "spared = subprocess.Popen(['sleep', '1000'])\n"
        "shell = 'setsid sh -c \"sleep 1000 & setsid sleep 1000 & wait\" & sleep 0.2'\n"
        "subprocess.run(['sh', '-c', shell])\n"
        "assert len(own_children()) == 2, own_children()\n"
        "kill_strays({spared.pid})\n"
        "assert own_children() == [spared.pid], own_children()\n"
        "spared.kill(); spared.wait()\n"
        "kill_strays(())\n"
        "print('done')\n"
    )
    done = in_a_process(code)
    assert done.stdout == "done\n", done.stderr


def test_strays_that_resist_are_given_up(monkeypatch, caplog, sleeper):
    from flashinfer_bench.bench.candidate import children

    monkeypatch.setattr(children, "_STRAYS_TIMEOUT_S", 0.0)
    monkeypatch.setattr(children, "kill", lambda pid: None)
    others = [pid for pid in processes.own_children() if pid != sleeper.pid]
    kill_strays(others)
    assert str(sleeper.pid) in caplog.text
