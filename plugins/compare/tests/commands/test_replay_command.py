"""``fib replay``: recorded runs are carried out again, in real processes."""

import json
import shutil

import pytest

from fib_compare.replay_command import parse_share

pytestmark = [pytest.mark.torch, pytest.mark.plugin("python")]

QUICK = ["--device", "cpu", "--iterations", "6", "--warmup-runs", "1", "--num-trials", "2"]
WIDE = ["--latency-tolerance", "100000%"]  # how busy this machine is must not matter
WRONG = "def run(x):\n    return x * 3\n"
# What is outside of a solution is not part of its hash.
SLOWER_IF = """
import os, time

def run(x):
    if os.path.exists({marker!r}):
        time.sleep(0.02)
    return x * 2
"""
SECRETS = ("rotation_seed", "reference_seed", "checks_id")


def lines_of(root):
    path = root / "traces/op/double.jsonl"
    return path, [json.loads(line) for line in path.read_text().splitlines()]


_recorded = {}


@pytest.fixture
def record(fib_process, maker, tmp_path_factory):
    """Writes a dataset with one solution, benchmarks it, and returns it.

    The one that most tests want is benchmarked once, and copied.
    """

    def run(*options, **solution):
        plain = not options and not solution
        if plain and "plain" in _recorded:
            shutil.copytree(_recorded["plain"], maker.root, dirs_exist_ok=True)
            return maker
        maker.definition()
        maker.workload()
        maker.solution("good_double", **solution)
        done = fib_process("run", "--local", maker.root, *QUICK, *options)
        assert (maker.root / "traces").is_dir(), done.stderr
        if plain:
            kept = tmp_path_factory.mktemp("recorded") / "dataset"
            _recorded["plain"] = shutil.copytree(maker.root, kept)
        return maker

    return run


@pytest.fixture
def replay(fib_process):
    """Replays with ``--json``; returns the exit code and the list of replays."""

    def run(*args, **options):
        done = fib_process("replay", *args, *WIDE, "--json", **options)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)["replays"]

    return run


def test_a_fresh_trace_is_reproduced(record, fib_process):
    dataset = record()
    dataset.solution("wrong_double", author="bob", code=WRONG)
    dataset.solution("broken_double", author="carol", code="def run(x:\n")
    others = ["--solutions", "wrong_double", "broken_double"]
    assert fib_process("run", "--local", dataset.root, *QUICK, *others).stderr
    _, before = lines_of(dataset.root)
    done = fib_process("replay", "--local", dataset.root, *WIDE)
    assert done.returncode == 0, done.stdout + done.stderr
    header, *rows = (line.split("\t") for line in done.stdout.splitlines())
    assert header[0] == "verdict"
    assert [row[0] for row in rows] == ["reproduced"] * 3
    assert done.stderr.count("bit for bit") == 3
    assert "3 reproduced" in done.stderr
    assert lines_of(dataset.root)[1] == before  # nothing was written


def test_json_tells_all_of_it_and_save_adds_a_trace_with_seeds_of_its_own(record, replay):
    dataset = record()
    code, (one,) = replay("--local", dataset.root, "--save")
    assert code == 0
    _, (first, second) = lines_of(dataset.root)
    before, now = (trace["evaluation"]["provenance"] for trace in (first, second))
    assert now["extra"].pop("replay_of") == first["evaluation"]["timestamp"]
    assert now["inputs_crc32"] == before["inputs_crc32"]
    assert all(now["extra"][name] != before["extra"][name] for name in SECRETS)
    assert (one["verdict"], one["reasons"], one["inputs"]) == ("reproduced", [], "same")
    names = one["definition"], one["solution"], one["workload"]
    assert names == ("double", "good_double", "w1")
    assert one["recorded"]["status"] == one["replayed"]["status"] == "PASSED"
    assert one["replayed"]["timestamp"] > one["recorded"]["timestamp"]
    assert one["replayed"]["max_absolute_error"] == one["recorded"]["max_absolute_error"]
    assert one["replayed"]["latency_ms"] > 0


def test_a_solution_that_became_slower(record, fib_process, tmp_path):
    marker = tmp_path / "slow"
    dataset = record(code=SLOWER_IF.format(marker=str(marker)))
    marker.touch()
    done = fib_process("replay", "--local", dataset.root)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.splitlines()[1].startswith("drifted\tdouble\tgood_double")
    assert "outside 0.1 of the recorded one" in done.stdout
    assert "interquartile ranges of the samples do not overlap" in done.stdout
    assert "1 drifted" in done.stderr


def test_a_changed_solution_is_not_the_recorded_one(record, replay):
    dataset = record()
    dataset.solution("good_double", code="def run(x):\n    return 2 * x\n")
    dataset.definition(description="of no effect")
    code, (one,) = replay("--local", dataset.root)
    assert (code, one["verdict"], one["replayed"]) == (4, "not reproducible", None)
    assert one["reasons"] == ["solution 'good_double' has changed since"]


def test_broken_lines_are_told_and_the_rest_is_replayed(record, replay):
    dataset = record()
    path = dataset.root / "traces/op/double.jsonl"
    good = path.read_text()
    path.write_text('{"definition": "double", "solution": 3}\n' + good + "nonsense\n" + good[:80])
    code, replays = replay(path)
    assert code == 4
    assert [one["verdict"] for one in replays] == [
        "not reproducible",
        "reproduced",
        "not reproducible",
    ]
    assert all("not a trace" in replays[index]["reasons"][0] for index in (0, 2))
    code, (one,) = replay(f"{path}:2")
    assert (code, one["path"], one["line"]) == (0, str(path), 2)
    code, (one,) = replay(f"{path}:3")
    assert (code, one["line"], one["solution"]) == (4, 3, None)


def test_filters_and_last(record, replay, fib_process):
    dataset = record()
    dataset.workload(uuid="w2-second")
    path, (later,) = lines_of(dataset.root)
    later["workload"]["uuid"] = "w2-second"
    later["evaluation"]["timestamp"] = "2999-01-01T00:00:00"
    with path.open("a") as file:
        file.write(json.dumps(later) + "\n")
    _, replays = replay("--local", dataset.root, "--workload", "w2")
    assert [one["workload"] for one in replays] == ["w2-second"]
    _, replays = replay("--local", dataset.root, "--last", "1", "--definition", "double")
    assert [one["workload"] for one in replays] == ["w2-second"]
    done = fib_process("replay", "--local", dataset.root, "--solution", "nobody")
    assert done.returncode == 2
    assert "no recorded run" in done.stderr


def test_a_record_edited_by_hand_does_not_hold(record, replay):
    """Each of these was reported as reproduced once."""
    dataset = record()
    path, (honest,) = lines_of(dataset.root)

    def edited(change):
        one = json.loads(json.dumps(honest))
        change(one, one["evaluation"])
        path.write_text(json.dumps(one) + "\n")
        code, (found,) = replay(path)
        return code, found["verdict"], "; ".join(found["reasons"])

    def boast(_, run):
        run["performance"]["speedup_factor"] *= 1000

    def shrink(record, _):
        record["workload"]["axes"] = dict.fromkeys(record["workload"]["axes"], 1)

    assert edited(boast)[:2] == (1, "drifted")
    code, verdict, why = edited(shrink)
    assert (code, verdict) == (4, "not reproducible")
    assert "workload 'w1' has changed" in why


@pytest.mark.parametrize("text", ["1%", "0.01", ".01", "1e-2", "1E-2", " 1 % "])
def test_shares_are_written_in_any_usual_way(text):
    assert parse_share(text) == pytest.approx(0.01)
