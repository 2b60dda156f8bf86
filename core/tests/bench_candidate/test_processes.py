import os
import subprocess
import sys

import pytest

from flashinfer_bench.bench.candidate.folders import remove_folder


def in_a_process(code):
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
        "from flashinfer_bench.bench.candidate.processes import adopt_orphans, children_of\n"
        "from flashinfer_bench.bench.candidate.template import kill_strays\n"
        "assert adopt_orphans()\n"
        "spared = subprocess.Popen(['sleep', '1000'])\n"
        "shell = 'setsid sh -c \"sleep 1000 & setsid sleep 1000 & wait\" & sleep 0.2'\n"
        "subprocess.run(['sh', '-c', shell])\n"
        "assert len(children_of(os.getpid())) == 2, children_of(os.getpid())\n"
        "kill_strays({spared.pid})\n"
        "assert children_of(os.getpid()) == [spared.pid], children_of(os.getpid())\n"
        "spared.kill(); spared.wait()\n"
        "kill_strays(())\n"
        "print('done')\n"
    )
    done = in_a_process(code)
    assert done.stdout == "done\n", done.stderr


# ---------------------------------------------------------------------------------------- folders


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


def test_links_are_not_followed(folder, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("keep")
    (folder / "inner").mkdir()
    (folder / "inner/to_folder").symlink_to(outside)
    (folder / "to_file").symlink_to(outside / "file")
    (folder / "to_nothing").symlink_to("nowhere")
    (folder / "loop").symlink_to(folder)
    remove_folder(folder)
    assert not folder.exists()
    assert (outside / "file").read_text() == "keep"


def test_deeper_than_a_path_can_be_long(folder):
    here = os.open(folder, os.O_RDONLY)
    name = "d" * 200
    for _ in range(60):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    remove_folder(folder)
    assert not folder.exists()


def test_without_permissions(folder):
    inner = folder / "inner"
    inner.mkdir()
    (inner / "file").write_text("x")
    inner.chmod(0)
    folder.chmod(0o500)
    remove_folder(folder)
    assert not folder.exists()
