"""Each bad input has a clear error and its documented exit code, whatever the command."""

from __future__ import annotations

import os
import sys

import pytest

READERS = (["report", "summary"], ["report", "best"], ["validate"])
ALL = (*READERS, ["run", "--device", "cpu"], ["report", "visualize"])
NAMES = ("report summary", "report best", "validate", "run", "report visualize")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Nothing may be written into the working folder by an error."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    yield
    assert list((tmp_path / "cwd").iterdir()) == []


@pytest.mark.parametrize("command", ALL, ids=NAMES)
def test_a_missing_dataset(fib, tmp_path, command):
    missing = tmp_path / "mistyped"
    result = fib(*command, "--local", missing)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert f"error: no dataset: {missing} does not exist" in result.stderr
    assert "hint:" in result.stderr
    assert not missing.exists()


@pytest.mark.parametrize("command", ALL, ids=NAMES)
def test_a_missing_default_dataset(fib, tmp_path, command):
    result = fib(*command)
    assert result.exit_code == 2
    assert "FIB_DATASET_PATH" in result.stderr


@pytest.mark.parametrize("command", ALL, ids=NAMES)
def test_a_file_in_place_of_a_dataset(fib, tmp_path, command):
    (tmp_path / "file").write_text("{}")
    result = fib(*command, "--local", tmp_path / "file")
    assert result.exit_code == 2
    assert "is not a folder" in result.stderr


@pytest.mark.parametrize("command", ALL, ids=NAMES)
def test_an_empty_dataset(fib, tmp_path, command):
    (tmp_path / "empty").mkdir()
    result = fib(*command, "--local", tmp_path / "empty")
    assert result.exit_code == 5
    assert result.stdout == ""
    assert "there is nothing in the dataset" in result.stderr
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.parametrize("command", ALL, ids=NAMES)
def test_no_name_of_a_dataset_of_the_hub(fib, command):
    more = ("--no-save-results",) if command[0] == "run" else ()
    result = fib(*command, "--hub", "../up", *more)
    assert result.exit_code == 2
    assert "'../up' is not a dataset of the hub" in result.stderr
    assert "ORGANISATION/NAME@REVISION" in result.stderr


def test_traces_are_not_written_into_a_shared_cache(fib):
    result = fib("run", "--hub", "somebody/traces")
    assert result.exit_code == 2
    assert "--no-save-results" in result.stderr


@pytest.mark.parametrize("command", READERS[:2], ids=NAMES[:2])
def test_malformed_json_names_file_and_line_and_spares_the_rest(fib, maker, command):
    maker.sound()
    maker.raw("definitions/op/broken.json", '{\n  "name": "x",\n  oops\n}')
    with (maker.root / "traces/op/double.jsonl").open("a") as file:
        file.write("{'single': 'quotes'}\n")
    result = fib(*command, "--local", maker.root)
    assert result.exit_code == 1
    assert f"{maker.root}/definitions/op/broken.json:3: not valid JSON" in result.stderr
    assert f"{maker.root}/traces/op/double.jsonl:5: not valid JSON" in result.stderr
    assert "alice" in result.stdout


def test_malformed_json_found_by_validate(fib, maker):
    maker.sound()
    with (maker.root / "traces/op/double.jsonl").open("a") as file:
        file.write("{'single': 'quotes'}\n")
    result = fib("validate", "--local", maker.root)
    assert result.exit_code == 1
    assert "traces/op/double.jsonl:5\tnot valid JSON" in result.stdout


@pytest.mark.parametrize("command", READERS[:2], ids=NAMES[:2])
def test_links_that_go_round_in_a_circle(fib, maker, command):
    maker.sound()
    before = fib(*command, "--local", maker.root)
    (maker.root / "traces/op/loop.jsonl").symlink_to("loop.jsonl")
    result = fib(*command, "--local", maker.root)
    assert result.exit_code == 0  # the link is lost, nothing else is
    assert f"{maker.root}/traces/op/loop.jsonl: left out: this link leads nowhere" in result.stderr
    assert result.stdout == before.stdout
    assert "internal error" not in result.stderr


def test_many_broken_lines_are_summed_up(fib, maker):
    maker.sound()
    with (maker.root / "traces/op/double.jsonl").open("a") as file:
        file.writelines("broken\n" for _ in range(50))
    result = fib("report", "summary", "--local", maker.root)
    assert result.exit_code == 1
    assert result.stderr.count("not valid JSON") == 10
    assert "40 more" in result.stderr
    assert "fib validate" in result.stderr


@pytest.mark.parametrize("kind", ["definition", "solution"])
@pytest.mark.parametrize("command", READERS, ids=NAMES[:3])
def test_duplicate_names(fib, maker, kind, command):
    maker.sound()
    if kind == "definition":
        text = (maker.root / "definitions/op/double.json").read_text()
        maker.raw("definitions/other/double.json", text)
    else:
        maker.solution("alice_double", author="bob")
    result = fib(*command, "--local", maker.root)
    assert result.exit_code == 1
    assert f"another {kind} named" in result.output


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        (["--definitions", "dubble"], ["'dubble'", "double"]),
        (["--definitions", "double", "zzz"], ["'zzz'"]),
        (["--op-type", "opp"], ["'opp'"]),
    ],
)
@pytest.mark.parametrize("command", [ALL[0], ALL[1], ALL[3], ALL[4]], ids=lambda c: " ".join(c[:2]))
def test_unknown_names_in_a_filter(fib, maker, command, filters, words):
    result = fib(*command, "--local", maker.sound().root, *filters)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize("command", [ALL[1], ALL[3], ALL[4]], ids=lambda c: " ".join(c[:2]))
def test_an_unknown_solution_in_a_filter(fib, maker, command):
    result = fib(*command, "--local", maker.sound().root, "--solutions", "alice_duble")
    assert result.exit_code == 2
    assert "alice_double" in result.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--iterations", "0"], "iterations"),
        (["--warmup-runs", "-1"], "warmup_runs"),
        (["--num-trials", "0"], "num_trials"),
        (["--rtol", "-0.1"], "rtol"),
        (["--atol", "nan"], "atol"),
        (["--required-matched-ratio", "1.5"], "required_matched_ratio"),
        (["--timeout", "0"], "timeout_seconds"),
        (["--device", "tpu0!"], "device"),
        (["--seed", "-1"], "seed"),
        (["--trust", "some"], "trust"),
        (["--log-level", "LOUD"], "LOUD"),
        (["--config", "missing.yaml"], "missing.yaml"),
    ],
)
def test_values_out_of_range(fib, maker, args, words):
    result = fib("run", "--local", maker.sound().root, *args)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("iterations: many", "iterations"),
        ("no_such_setting: 1", "no_such_setting"),
        ("a: [", "config.yaml"),
        ("- 1", "config.yaml"),
    ],
)
def test_a_bad_configuration(fib, maker, tmp_path, content, words):
    (tmp_path / "config.yaml").write_text(content)
    result = fib("run", "--local", maker.sound().root, "--config", tmp_path / "config.yaml")
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_tensor_file_with_a_wrong_key_shape_and_dtype(fib, maker):
    maker.definition()
    maker.solution()
    for index, (key, dtype, shape) in enumerate(
        [("y", "F32", [16]), ("x", "F32", [17]), ("x", "BF16", [16])]
    ):
        maker.blob(f"blob/{index}.safetensors", {key: (dtype, shape)})
        maker.from_blob(f"blob/{index}.safetensors", uuid=f"w{index}")
    maker.from_blob("../../outside.safetensors", uuid="w9")
    result = fib("validate", "--local", maker.root)
    assert result.exit_code == 1
    for words in ("no tensor 'x'", "shape [17]", "holds bfloat16", "leads out of the dataset"):
        assert words in result.stdout


@pytest.mark.parametrize("command", ["visualize", "merge"])
def test_output_that_cannot_be_written(fib, maker, tmp_path, command):
    (tmp_path / "file").write_text("mine")
    target = tmp_path / "file" / "report.html"
    result = fib("report", command, "--local", maker.sound().root, "--output", target)
    assert result.exit_code == 4
    assert str(target) in result.stderr
    assert "Traceback" not in result.stderr
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(sys.platform != "linux", reason="needs the limits of Linux")
def test_a_full_disk(fib_process, maker, tmp_path):
    import resource

    page = tmp_path / "page.html"
    page.write_text("the page before")
    done = fib_process(
        "report", "visualize", "--local", maker.sound().root, "--output", page,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)),
    )  # fmt: skip
    assert done.returncode == 4
    assert "error: " in done.stderr
    assert page.read_text() == "the page before"
    assert os.listdir(tmp_path).count("page.html") == 1  # noqa: PTH208


def test_ctrl_c_ends_quietly(fib, maker, monkeypatch):
    import flashinfer_bench.validate as package

    def interrupted(root, *options, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(package, "validate_dataset", interrupted)
    result = fib("validate", "--local", maker.sound().root)
    assert result.exit_code == 130
    assert "Traceback" not in result.output


def test_a_bug_is_told_shortly(fib, maker, monkeypatch):
    import flashinfer_bench.validate as package

    monkeypatch.setattr(package, "validate_dataset", lambda *args, **more: 1 / 0)
    result = fib("validate", "--local", maker.sound().root)
    assert result.exit_code == 3
    assert "internal error: ZeroDivisionError" in result.stderr
    assert "Traceback" not in result.output
    debugging = fib("validate", "--local", maker.root, "--log-level", "DEBUG")
    assert debugging.exit_code == 3
    assert "Traceback" in debugging.stderr
