"""Datasets of the hub, from a stand-in for it on this machine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from fib_datasets.hub import HubDataset, dataset_of, fetch_blob
from fib_tests import forked
from fib_tests.dataset_maker import DatasetMaker
from fib_tests.hub import hub
from flashinfer_bench.data.blobs import present_blob, resolve_blob
from flashinfer_bench.errors import ConfigError, UnsafePathError

REPO = "somebody/traces"
BLOB = "blob/workloads/gemm/gemm_n8_k4/w.safetensors"


@pytest.fixture
def server():
    with hub() as made:
        yield made


@pytest.fixture
def files(make):
    """Return a small dataset with a tensor file and other things."""
    definition = json.dumps(make.definition_record()).encode()
    solution = json.dumps(make.solution_record()).encode()
    return {
        "definitions/gemm/gemm_n8_k4.json": definition,
        "solutions/alice/gemm/gemm_n8_k4/alice_v1.json": solution,
        "workloads/gemm/gemm_n8_k4.jsonl": b"\n",
        "traces/gemm/gemm_n8_k4.jsonl": b"\n\n",
        BLOB: b"\x08\0\0\0\0\0\0\0{}      ",
        "README.md": b"# Traces",
        ".gitattributes": b"*",
    }


class Asker:
    """Asks from processes of their own: the library reads its settings when it is imported."""

    def __init__(self, server, home):
        self.variables = {"HF_ENDPOINT": server.endpoint, "HF_HOME": str(home), "HF_TOKEN": ""}

    def __call__(self, code, *arguments, **variables):
        """Return the value of an expression; of an error its class, message and hint."""
        command = [sys.executable, "-c", PROGRAM.format(code), *arguments]
        environment = {**os.environ, **self.variables, **variables}
        done = forked.run(command, env=environment, timeout=600)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def download(self, dataset, **variables):
        return self("str(download_dataset(HubDataset.parse(argv[1])))", dataset, **variables)

    def blob(self, root, path):
        return self("fetch_blob(Path(argv[1]), argv[2])", root, path)


PROGRAM = """
import json
import sys
from pathlib import Path
from sys import argv
from fib_datasets.hub import *
from flashinfer_bench.data.blobs import present_blob
from flashinfer_bench.errors import FibError
try:
    print(json.dumps({}))
except FibError as error:
    print(json.dumps([type(error).__name__, error.message, error.hint]))
"""


@pytest.fixture
def ask(server, tmp_path):
    pytest.importorskip("huggingface_hub")
    return Asker(server, tmp_path / "home")


def names(root):
    return sorted(path.relative_to(root).as_posix() for path in Path(root).rglob("*.*"))


# ------------------------------------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("text", "repo", "revision"),
    [
        ("org/name", "org/name", None),
        ("name", "name", None),
        ("org/name@v1.0", "org/name", "v1.0"),
        ("o.r-g_/n@refs/pr/3", "o.r-g_/n", "refs/pr/3"),
    ],
)
def test_sound_names(text, repo, revision):
    found = HubDataset.parse(text)
    assert found == (repo, revision)
    assert str(found) == text


@pytest.mark.parametrize(
    "text",
    ["", "@", "a/b/c", "a/b@", "../b", "a/..", "a/b@..", "a/b@x/../y", "a b", "a/b@c@d", "/a",
     "a/b\n", "ä/b"],
)  # fmt: skip
def test_unsound_names(text):
    with pytest.raises(ConfigError, match="is not a dataset of the hub") as caught:
        HubDataset.parse(text)
    assert "ORGANISATION/NAME@REVISION" in str(caught.value.hint)


# --------------------------------------------------------------------------------------- download


def test_json_comes_and_nothing_else(server, files, ask):
    commit = server.publish(REPO, files)
    root = ask.download(REPO)
    assert Path(root).name == commit
    wanted = {path for path in files if path.endswith((".json", ".jsonl"))}
    assert set(names(root)) == wanted
    assert set(server.asked) == wanted
    # Definitions and workloads first.
    assert {path.partition("/")[0] for path in server.asked[:2]} == {"definitions", "workloads"}
    server.asked.clear()
    assert ask.download(REPO) == root
    assert server.asked == []


def test_revisions(server, files, ask):
    old = server.publish(REPO, files)
    newer = {**files, "definitions/gemm/gemm_n8_k4.json": files.pop("README.md")}
    new = server.publish(REPO, newer)
    server.publish(REPO, files, branch="stable")
    assert Path(ask.download(REPO)).name == new
    assert Path(ask.download(f"{REPO}@{old}")).name == old
    assert Path(ask.download(f"{REPO}@stable")).name not in (old, new)


def test_a_branch_that_moves_on_meanwhile(server, files, ask):
    """What comes second is of the commit that came first."""
    first = server.publish(REPO, files)
    find = server.find

    def find_and_move(repo, revision):
        found = find(repo, revision)
        if revision == "main":
            server.publish(REPO, {**files, "traces/new.jsonl": b"{}"})
        return found

    server.find = find_and_move
    root = ask.download(f"{REPO}@main")
    assert Path(root).name == first
    assert "traces/new.jsonl" not in names(root)


def test_hostile_names_of_files(server, files, ask, tmp_path):
    server.publish(REPO, {**files, "definitions/../../../../../evil.json": b"{}"})
    ask.download(REPO)
    found = [path for path in tmp_path.rglob("evil.json") if "snapshots" not in path.parts]
    assert not found
    assert not list(tmp_path.parent.glob("evil.json"))


@pytest.mark.torch
def test_hub_without_a_name_is_the_public_dataset(server, ask, tmp_path):
    root = DatasetMaker(tmp_path / "dataset").sound().root
    paths = root.rglob("*.json*")
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
    server.publish("flashinfer-ai/flashinfer-trace", files)

    def fib(*words):
        environment = {**os.environ, **ask.variables}
        command = [sys.executable, "-m", "flashinfer_bench", *words, "--json"]
        return forked.run(command, env=environment, timeout=600)

    ran = fib("run", "--device", "cpu", "--hub", "--definition", "double", "--iterations", "1")
    assert ran.returncode == 0, ran.stderr
    assert "traces are not saved: --hub names a dataset in a shared cache" in ran.stderr
    (dataset,) = json.loads(ran.stdout)["datasets"]
    assert (dataset["saved"], dataset["statuses"]) == (False, {"PASSED": 4})
    best = fib("report", "best", "--definitions", "double", "--hub")
    assert best.returncode == 0, best.stderr
    named = fib("report", "best", "--hub", "flashinfer-ai/flashinfer-trace@main")
    assert named.stdout == best.stdout
    assert fib("report", "best", "--hub=nobody/nothing").returncode == 2


@pytest.mark.parametrize(
    ("dataset", "problem", "remedy"),
    [
        ("nobody/nothing", "'nobody/nothing' of the hub does not exist", "hf auth login"),
        (f"{REPO}@never", "has no revision 'never'", "default branch"),
        ("some/secret", "is restricted", "request access"),
    ],
)
def test_what_is_not_to_be_had(server, files, ask, dataset, problem, remedy):
    server.publish(REPO, files)
    server.publish("some/secret", files)
    server.gated.add("some/secret")
    kind, message, hint = ask.download(dataset)
    assert kind == "DatasetNotFoundError"
    assert problem in message
    assert remedy in hint


@pytest.mark.parametrize(
    "variables",
    [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}],  # where nobody listens
    ids=["offline", "nobody listens"],
)
def test_what_was_fetched_before_is_used(server, files, ask, variables):
    server.publish(REPO, files)
    root = ask.download(REPO)
    assert ask.download(REPO, **variables) == root
    kind, message, hint = ask.download("nobody/nothing", **variables)
    assert kind == "DatasetNotFoundError"
    assert "is unreachable" in message
    assert "HF_HUB_OFFLINE" in hint


def test_without_the_library(ask):
    lost = "sys.modules.update(huggingface_hub=None) or str(download_dataset(argv[1]))"
    kind, message, hint = ask(lost, REPO)
    assert kind == "CapabilityError"
    assert "huggingface_hub, which is not installed" in message
    assert "pip install huggingface_hub" in hint


# ----------------------------------------------------------------------------------- tensor files


def test_tensor_files_come_when_somebody_reads_them(server, files, ask):
    server.publish(REPO, files)
    root = ask.download(REPO)
    server.publish(REPO, {**files, BLOB: b"of another commit"})
    server.asked.clear()
    path = ask("str(present_blob(Path(argv[1]), './' + argv[2]))", root, BLOB)
    assert server.asked == [BLOB]
    assert Path(path).read_bytes() == files[BLOB]
    assert ask.blob(root, BLOB)
    assert server.asked == [BLOB]


def test_a_tensor_file_that_is_not_there(server, files, ask):
    server.publish(REPO, files)
    kind, message, _ = ask.blob(ask.download(REPO), "blob/none.safetensors")
    assert kind == "BlobError"
    assert "'blob/none.safetensors' of the dataset 'somebody/traces'" in message
    assert "does not exist" in message


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "blob/../../../../x"])
def test_paths_stay_inside(path, tmp_path):
    root = tmp_path / "datasets--a--b" / "snapshots" / "0123"
    root.mkdir(parents=True)
    with pytest.raises(UnsafePathError):
        present_blob(root, path)


def test_other_folders_have_nothing_to_do_with_it(tmp_path):
    root = tmp_path / "datasets--some--body" / "snapshots" / "0123"
    assert dataset_of(root) == HubDataset("some/body", "0123")
    assert dataset_of(tmp_path) is None
    assert not fetch_blob(tmp_path, "blob/x.safetensors")
    assert present_blob(tmp_path, "blob/x") == resolve_blob(tmp_path, "blob/x")
