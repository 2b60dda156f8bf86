"""Running tools, and what their end means."""

import os
import sys
import time
from pathlib import Path

import pytest

from fib_native_toolkit import ToolOutput, check_output, run_tool, unsupported_by_toolkit
from flashinfer_bench.errors import BuildError, CapabilityError, StorageError


def python(code):
    return [sys.executable, "-c", code]


class TestRun:
    def test_a_flood_is_cut_in_the_middle(self, tmp_path):
        flood = "for _ in range(200): os.write(1, b'x' * 100_000)"
        code = f"import os\nos.write(1, b'first')\n{flood}\nos.write(1, b'last')"
        output = run_tool(python(code), cwd=tmp_path).output
        assert output.startswith("first")
        assert output.endswith("last")
        assert "bytes left out]" in output
        assert len(output) < 7 << 20

    @pytest.mark.skipif(os.name != "posix", reason="signals")
    def test_what_stays_behind_keeps_nobody(self, tmp_path):
        code = "import subprocess; print(subprocess.Popen(['sleep', '100']).pid)"
        pid = int(run_tool(python(code), cwd=tmp_path).output)
        os.kill(pid, 9)  # it is there: nobody has waited for its end

    def test_the_log_has_commands_and_outputs(self, tmp_path):
        log = tmp_path / "compiler.log"
        run_tool(["echo", "one two"], cwd=tmp_path, log=log)
        run_tool(python("print('x', end='')"), cwd=tmp_path, log=log)
        lines = log.read_text().splitlines()
        assert lines[:2] == ["$ echo 'one two'", "one two"]
        assert lines[2].startswith("$ ")
        assert lines[3] == "x"


class TestCheck:
    def test_killed_for_its_memory(self):
        with pytest.raises(CapabilityError, match=r"'s': nvcc was killed: .*out of memory"):
            check_output("s", "nvcc", ToolOutput(-9, ""))

    @pytest.mark.parametrize(
        "line",
        [
            "c++: fatal error: Killed signal terminated program cc1plus",
            "clang++: error: unable to execute command: Killed",
            "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        ],
    )
    def test_a_part_of_the_compiler_was_killed(self, line):
        output = f"[1/2] c++ -c a.cpp\nFAILED: a.o\n{line}\nninja: build stopped\n"
        with pytest.raises(CapabilityError, match="out of memory"):
            check_output("s", "compiling", ToolOutput(1, output))

    @pytest.mark.parametrize(
        "line",
        [
            "/tmp/ccX.s: Fatal error: can't fill 256 bytes of a.o: 'No space left on device'",
            "a.cpp:3:1: fatal error: error writing to /tmp/ccX.s: No space left on device",
            "/usr/bin/ld: final link failed: No space left on device",
            "cc: internal compiler error: File size limit exceeded signal terminated program as",
            "c++: fatal error: File size limit exceeded signal terminated program cc1plus",
        ],
    )
    def test_a_full_disk(self, line):
        with pytest.raises(StorageError, match="ran out of disk space") as caught:
            check_output("s", "nvcc", ToolOutput(1, f"a.cpp: in f\n{line}\n1 error"))
        assert "fib cache prune" in caught.value.hint

    @pytest.mark.parametrize(
        "line",
        [
            "a.cpp:1:2: error: #error No space left on device",
            'a.cpp(1): error: static assertion failed with "No space left on device"',
            "a.cpp:1:2: warning: #warning No space left on device [-Wcpp]",
            "a.cpp:5:1: error: call to 'f' declared with attribute error: No space left on device",
            'a.cpp:7: error: no match for call "No space left on device" (int)',
        ],
    )
    def test_a_source_that_talks_of_a_full_disk(self, line):
        with pytest.raises(BuildError):
            check_output("s", "nvcc", ToolOutput(1, line))


class TestUnsupportedByTheToolkit:
    UNKNOWN = "nvcc fatal   : Unsupported gpu architecture 'compute_120a'"
    GCC = (
        "/usr/local/cuda/bin/../include/crt/host_config.h:132:2: error: #error -- unsupported GNU "
        "version! gcc versions later than 12 are not supported!"
    )
    CLANG = GCC.replace("GNU version", "clang version")

    @pytest.mark.parametrize("line", [UNKNOWN, GCC, CLANG])
    def test_it_is_the_machine_s_fault(self, monkeypatch, line):
        monkeypatch.setenv("FIB_CUDA_ARCH_LIST", "9.0a 12.0a+PTX")
        output = f"[1/2] nvcc -c a.cu\nFAILED: a.o\n{line}\nninja: build stopped\n"
        assert unsupported_by_toolkit(output) == line
        with pytest.raises(CapabilityError, match="does not work on this machine") as caught:
            check_output("s", "compiling", ToolOutput(1, output))
        for word in ("FIB_CUDA_ARCH_LIST", "NVCC_CCBIN", "CXX"):
            assert word in caught.value.hint

    def test_an_architecture_of_the_solution_s_own(self, monkeypatch):
        for chosen in ("9.0a", "wrong"):
            monkeypatch.setenv("FIB_CUDA_ARCH_LIST", chosen)
            assert unsupported_by_toolkit(self.UNKNOWN) == ""
        with pytest.raises(BuildError, match="Unsupported gpu architecture"):
            check_output("s", "compiling", ToolOutput(1, self.UNKNOWN))

    def test_a_source_that_words_it_itself(self):
        line = "a.cu:1:2: error: #error -- unsupported GNU version!"
        assert unsupported_by_toolkit(line) == ""


COMPILE = """
import sys, time
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from fib_native_toolkit import run_tool
from fib_native_toolkit.recipe import Recipe, run_recipe

folder = Path(sys.argv[1])
hangs = ["sh", "-c", "echo > $$.pid; exec sleep 60"]

def compile_two():
    recipe = Recipe((("a.c", "c"), ("b.c", "c")), {"c": hangs}, [], [], [])
    run_recipe(SimpleNamespace(name="s"), recipe, folder, "library.so")
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
class TestEnds:
    @pytest.fixture
    def begun(self, tmp_path, start, monkeypatch):
        """Return a function that runs code until its tools run; it returns it and their ids."""
        monkeypatch.setenv("MAX_JOBS", "2")
        folder = tmp_path / "sources"
        folder.mkdir()

        def run(code, count):
            process = start(COMPILE + code, tmp_path)
            for _ in range(1500):
                if len(found := list(folder.glob("*.pid"))) == count:
                    break
                time.sleep(0.02)
            time.sleep(0.3)  # until Popen, which cannot be left when interrupted, has returned
            return process, [Path("/proc", path.stem) for path in found]

        return run

    def test_an_interrupt_ends_the_tool(self, begun):
        process, (tool,) = begun("run_tool(hangs, cwd=folder / 'sources')", 1)
        process.send_signal(2)
        _, err = process.communicate(timeout=30)
        assert "KeyboardInterrupt" in err
        assert not tool.exists() or "Z" in (tool / "stat").read_text()

    @pytest.mark.parametrize("interrupted", [True, False])
    def test_a_process_that_ends_does_not_wait_for_compilers(self, begun, tmp_path, interrupted):
        in_background = "Thread(target=compile_two, daemon=True).start()\n"
        wait = "while not (folder / 'end').exists(): time.sleep(0.01)"
        process, tools = begun("compile_two()" if interrupted else in_background + wait, 2)
        if interrupted:
            process.send_signal(2)
        (tmp_path / "end").touch()
        _, err = process.communicate(timeout=30)
        assert ("KeyboardInterrupt" in err) is interrupted
        for each in tools:
            os.kill(int(each.name), 9)
