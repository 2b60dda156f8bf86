"""Running tools, and what their end means."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from flashinfer_bench.compile.toolkit import ToolOutput, check_output, run_tool
from flashinfer_bench.errors import BuildError, CapabilityError, StorageError


def python(code):
    return [sys.executable, "-c", code]


class TestRun:
    def test_both_streams_in_the_order_they_came(self, tmp_path):
        code = "import os\nfor i in range(20): os.write(1 + i % 2, b'%d ' % i)\nraise SystemExit(3)"
        result = run_tool(python(code), cwd=tmp_path)
        assert result == ToolOutput(3, " ".join(map(str, range(20))) + " ")

    def test_there_is_no_input(self, tmp_path):
        assert run_tool(python("print(input())"), cwd=tmp_path).output.endswith(
            "EOFError: EOF when reading a line\n"
        )

    def test_folder_and_environment(self, tmp_path, monkeypatch):
        monkeypatch.setenv("INHERITED", "1")
        code = "import os; print(os.getcwd(), os.environ['A'], os.environ['INHERITED'])"
        result = run_tool(python(code), cwd=tmp_path, env={"A": "b"})
        assert result.output == f"{tmp_path.resolve()} b 1\n"

    def test_it_speaks_english(self, tmp_path, monkeypatch):
        monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
        result = run_tool(["cat", "/no/such/file"], cwd=tmp_path)
        assert "No such file or directory" in result.output

    def test_what_is_no_text(self, tmp_path):
        result = run_tool(python("import os; os.write(1, b'a\\xff\\xfeb')"), cwd=tmp_path)
        assert result.output == "a\ufffd\ufffdb"

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

    def test_what_cannot_be_started(self, tmp_path):
        with pytest.raises(CapabilityError, match=r"nowhere cannot be started: .*No such file"):
            run_tool([tmp_path / "nowhere"], cwd=tmp_path)
        with pytest.raises(CapabilityError, match=r"cannot be started: .*null"):
            run_tool([sys.executable, "a\0b"], cwd=tmp_path)

    def test_the_log_has_commands_and_outputs(self, tmp_path):
        log = tmp_path / "compiler.log"
        run_tool(["echo", "one two"], cwd=tmp_path, log=log)
        run_tool(python("print('x', end='')"), cwd=tmp_path, log=log)
        lines = log.read_text().splitlines()
        assert lines[:2] == ["$ echo 'one two'", "one two"]
        assert lines[2].startswith("$ ")
        assert lines[3] == "x"

    def test_a_log_that_cannot_be_written(self, tmp_path):
        with pytest.raises(StorageError, match="cannot be written"):
            run_tool(["true"], cwd=tmp_path, log=tmp_path / "no" / "log")


class TestCheck:
    def test_success(self):
        check_output("s", "nvcc", ToolOutput(0, "a.cpp:1: error: not really"))

    def test_a_hint_is_passed_on(self):
        with pytest.raises(BuildError) as caught:
            check_output("s", "nvcc", ToolOutput(1, "error: x"), hint="try y")
        assert caught.value.hint == "try y"

    def test_silence(self):
        with pytest.raises(BuildError, match="linking failed: exit status 7"):
            check_output("s", "linking", ToolOutput(7, " \n"))

    def test_a_signal(self):
        with pytest.raises(BuildError, match="nvcc failed: error: nvcc was killed by signal 11"):
            check_output("s", "nvcc", ToolOutput(-11, ""))

    def test_killed_for_its_memory(self):
        with pytest.raises(CapabilityError, match=r"'s': nvcc was killed: .*out of memory"):
            check_output("s", "nvcc", ToolOutput(-9, ""))

    @pytest.mark.parametrize(
        "line",
        [
            "c++: fatal error: Killed signal terminated program cc1plus",
            "x86_64-linux-gnu-g++-12: fatal error: Killed signal terminated program cc1plus",
            "clang++: error: unable to execute command: Killed",
            "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        ],
    )
    def test_a_part_of_the_compiler_was_killed(self, line):
        output = f"[1/2] c++ -c a.cpp\nFAILED: a.o\n{line}\nninja: build stopped\n"
        with pytest.raises(CapabilityError, match="out of memory"):
            check_output("s", "compiling", ToolOutput(1, output))

    def test_a_source_that_words_it_itself(self):
        line = "a.cpp:1:2: error: #error c++: fatal error: Killed signal terminated program cc1plus"
        with pytest.raises(BuildError):
            check_output("s", "compiling", ToolOutput(1, line))

    def test_a_real_signal(self, tmp_path):
        result = run_tool(python("import os; print('busy', flush=True); os.abort()"), cwd=tmp_path)
        with pytest.raises(BuildError, match="killed by signal 6") as caught:
            check_output("s", "compiling", result)
        assert "busy" in caught.value.log

    @pytest.mark.parametrize(
        "line",
        [
            "/tmp/ccX.s: Fatal error: can't fill 256 bytes of a.o: 'No space left on device'",
            "a.cpp:3:1: fatal error: error writing to /tmp/ccX.s: No space left on device",
            "/usr/bin/ld: final link failed: No space left on device",
            "LLVM ERROR: IO failure on output stream: No space left on device",
            "tee: write error: Disk quota exceeded",
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
            "a.cpp:1:26: error: static assertion failed: No space left on device",
            "a.cpp:1:2: warning: #warning No space left on device [-Wcpp]",
            "a.s:1: Error: No space left on device",
            "a.cpp:5:1: error: call to 'f' declared with attribute error: No space left on device",
            'a.cpp:7: error: no match for call "No space left on device" (int)',
        ],
    )
    def test_a_source_that_talks_of_a_full_disk(self, line):
        with pytest.raises(BuildError):
            check_output("s", "nvcc", ToolOutput(1, line))


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupt_ends_the_tool(tmp_path, start):
    code = (
        "from pathlib import Path; import sys\n"
        "from flashinfer_bench.compile.toolkit import run_tool\n"
        "script = 'echo $$ > pid; exec sleep 60'\n"
        "run_tool(['sh', '-c', script], cwd=Path(sys.argv[1]))\n"
    )
    process = start(code, tmp_path)
    for _ in range(500):
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip():
            break
        time.sleep(0.02)
    process.send_signal(2)
    _, err = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in err
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()
