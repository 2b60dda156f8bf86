from __future__ import annotations

import subprocess
import sys


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
