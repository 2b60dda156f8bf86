"""``fib compare``: real processes, exit codes, and what is printed."""

import json
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from fib_compare.compare_command import exit_code_of
from fib_compare.stats import Verdict
from fib_tests import forked
from fib_tests.dataset_maker import DatasetMaker
from flashinfer_bench.cli.exit_codes import ExitCode

SLEEPY = "import time\n\ndef run(x):\n    time.sleep({seconds})\n    return x * 2\n"
QUICK = ["--device", "cpu", "--max-seconds", "20", "--min-effect", "20%"]
needs_torch = [pytest.mark.torch, pytest.mark.plugin("python")]


@pytest.fixture
def dataset(maker):
    maker.definition()
    maker.workload()
    maker.solution("old", code=SLEEPY.format(seconds=0.004))
    maker.solution("new", code=SLEEPY.format(seconds=0.02))
    maker.definition("other")
    maker.solution("far", definition="other")
    maker.solution("wrong", code="def run(x):\n    return x * 3\n")
    maker.solution("broken", code="def run(x):\n    raise RuntimeError('no luck')\n")
    return maker.root


def compare(fib_process, root, baseline, candidate, *options):
    names = ["--baseline", baseline, "--candidate", candidate]
    return fib_process("compare", "--local", root, *names, *QUICK, *options)


class TestRealProcesses:
    pytestmark = needs_torch

    def test_twice_the_time_is_slower(self, fib_process, dataset):
        before = sorted(path for path in dataset.rglob("*"))
        names = ["old", "new", "--cache", "warm", "--json"]
        done = fib_process("compare", "--local", dataset, *QUICK, *names)
        assert done.returncode == 1, done.stderr
        told = json.loads(done.stdout)
        (one,) = told["comparisons"]
        assert (told["verdict"], told["exit_code"], told["paired"]) == ("slower", 1, True)
        assert (one["baseline"], one["candidate"], one["cache"]) == ("old", "new", "warm")
        assert {launch["candidate_first"] for launch in one["launches"]} == {True, False}
        assert 0 <= one["p_same"] <= 1
        assert one["verdict"] == "slower"
        assert one["low"] > 1.0
        assert one["candidate_ms"] > one["baseline_ms"] >= 4.0
        assert one["low"] <= one["ratio"] <= one["high"]
        assert all(len(launch["baseline"]) % 2 == 0 for launch in one["launches"])
        assert "slower" in done.stderr
        assert sorted(path for path in dataset.rglob("*")) == before, "nothing is written"

    def test_what_does_not_work_is_not_compared(self, fib_process, dataset):
        done = compare(fib_process, dataset, "old", "broken")
        assert done.returncode == 1
        assert "candidate failed: call: RuntimeError: no luck" in done.stdout
        assert "nothing could be compared" in done.stderr

    def test_too_little_time_is_ambiguous(self, fib_process, dataset):
        done = compare(fib_process, dataset, "old", "old", "--max-seconds", "0.001")
        assert done.returncode == 6, done.stderr
        assert "--max-seconds" in done.stderr

    def test_ctrl_c_shows_what_has_been_done(self, maker, dataset):
        maker.workload(uuid="w2")
        names = ["--local", str(dataset), "old", "old", "--device", "cpu", "--max-seconds", "60"]
        command = [sys.executable, "-m", "flashinfer_bench", "compare", *names]
        pipe = subprocess.PIPE
        command += ["--min-effect", "30%", "--workload", "w1", "w2"]
        with forked.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
            assert process.stderr is not None
            while "[1/2]" not in process.stderr.readline():
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert process.stdout is not None
            shown = process.stdout.read().splitlines()
        assert process.returncode == 130
        assert len(shown) == 2
        assert shown[1].split("\t")[1:3] == ["double", "w1"]


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--baseline", "old"], 2, "--candidate NAME"),
        ([], 2, "two solutions are needed"),
        (["old"], 2, "two solutions are needed, but only 'old'"),
        (["old", "new", "wrong", "more"], 2, "only one DATASET can be given"),
        (["old", "new", "--baseline", "old"], 2, "--baseline 'old' and the names"),
        (["old", "far"], 5, "compare two solutions of the same"),
        (["old", "new", "--definition", "other"], 5, "leave out --definition"),
        (["old", "new", "--cache", "lukewarm"], 2, "lukewarm"),
        (["old", "new", "--definition", "x"], 2, "'x'"),
        (["old", "new", "--min-effect", "0"], 2, "min_effect is 0"),
        (["old", "new", "--min-effect", "much"], 2, "not a share"),
        (["old", "new", "--max-seconds", "0"], 2, "max_seconds is 0"),
        (["old", "new", "--device", "tpu:x"], 2, "device"),
        (["old", "new", "--force"], 2, "--force requires"),
        (["old", "new", "--solution", "a"], 2, "--solution requires"),
    ],
)
def test_what_is_not_allowed(fib, dataset, options, code, text):
    done = fib("compare", "--local", dataset, *options)
    assert done.exit_code == code, done.output
    assert text in done.stderr


def trace(ms, solution="s", **changes):
    samples = [ms * (1 + 0.001 * (number % 7 - 3)) for number in range(200)]
    told = {"timer": "cpu", "timer_version": "1", "definition_hash": "0" * 16}
    facts = {"solution": solution, "latency_ms": ms, "samples_ms": samples, "provenance": told}
    return {**facts, **changes}


@pytest.fixture
def recorded(fib, tmp_path):
    """Compares what two files of traces record."""

    def run(before, after, *options):
        paths = []
        for name, traces in (("before", before), ("after", after)):
            made = DatasetMaker(tmp_path / name)
            made.raw("traces/op/double.jsonl", "")
            paths += {made.trace(**one) for one in traces}
        return fib(
            "compare", "--baseline-traces", paths[0], "--candidate-traces", paths[1], *options
        )

    return run


@pytest.mark.parametrize(("ms", "code"), [(6.0, 1), (4.0, 0), (5.0, 6)])
def test_recorded_samples_are_compared_unpaired(recorded, ms, code):
    done = recorded([trace(5.0)], [trace(ms)])
    assert done.exit_code == code, done.output
    assert "unpaired" in done.stderr
    told = json.loads(recorded([trace(5.0)], [trace(ms)], "--json").stdout)
    assert told["paired"] is False
    assert len(told["comparisons"][0]["recorded_ms"][0]) == 200
    assert any("unpaired" in note for note in told["comparisons"][0]["notes"])


def test_several_workloads_are_corrected_for(recorded):
    before = [trace(5.0, uuid=f"w{n}") for n in range(5)]
    after = [trace(5.0 * (1.3 if n == 2 else 1.0), uuid=f"w{n}") for n in range(5)]
    after[1]["status"] = "TIMEOUT"
    done = recorded(before, after, "--json")
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    found = [one["verdict"] for one in told["comparisons"]]
    assert found == ["ambiguous", None, "slower", "ambiguous", "ambiguous"]
    assert told["comparisons"][1]["obstacle"]["role"] == "candidate"
    assert told["comparisons"][2]["p_adjusted"] > told["comparisons"][2]["p_value"]


def test_two_names_choose_among_recorded_traces(recorded):
    both = [trace(5.0, "a"), trace(9.0, "b")]
    told = json.loads(recorded(both, both, "a", "b", "--json").stdout)
    (one,) = told["comparisons"]
    assert (one["baseline"], one["candidate"], one["verdict"]) == ("a", "b", "slower")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--baseline", "s"], "give both"),
        (["--baseline", "s", "--candidate", "s", "--solution", "s"], "leave out --baseline"),
        (["--local", "."], "nothing is run"),
        (["--workload", "zzz"], "nothing to compare"),
    ],
)
def test_what_does_not_go_with_recorded_traces(recorded, options, text):
    done = recorded([trace(5.0)], [trace(5.0)], *options)
    assert done.exit_code in (2, 5)
    assert text in done.stderr


@pytest.mark.parametrize(
    ("verdicts", "kinds", "code"),
    [
        ({Verdict.SAME}, [], ExitCode.OK),
        ({Verdict.FASTER, Verdict.AMBIGUOUS}, [], ExitCode.AMBIGUOUS),
        ({Verdict.SLOWER, Verdict.AMBIGUOUS}, [], ExitCode.FINDINGS),
        ({Verdict.SAME}, ["wrong"], ExitCode.FINDINGS),
        ({Verdict.SAME}, ["unavailable"], ExitCode.CAPABILITY),
        ({Verdict.SLOWER}, ["unavailable"], ExitCode.FINDINGS),
        ({Verdict.AMBIGUOUS}, ["unavailable"], ExitCode.CAPABILITY),
        ({Verdict.FASTER}, ["too slow"], ExitCode.AMBIGUOUS),
        (set(), ["wrong", "too slow"], ExitCode.FINDINGS),
    ],
)
def test_the_worst_decides_the_exit_code(verdicts, kinds, code):
    obstacles = [SimpleNamespace(kind=kind) for kind in kinds]
    assert exit_code_of(SimpleNamespace(verdicts=frozenset(verdicts), obstacles=obstacles)) is code


def test_on_a_terminal_a_bar_shows_how_far_it_has_come(capsys, monkeypatch):
    from fib_compare.compare_command import Watch
    from fib_compare.paired import CompareSettings

    contest = SimpleNamespace(
        definition=SimpleNamespace(name="[red]d"), workload=SimpleNamespace(uuid="0123456789")
    )
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    settings = CompareSettings()
    with Watch([contest], settings) as watch:
        watch.started(contest)
        watch.launched(3, 10.0)
    assert "3 launches" in capsys.readouterr().err
