"""Datasets of the hub, from a stand-in for it on this machine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fib_datasets.hub import HubDataset, dataset_of, fetch_blob
from fib_tests import forked
from fib_tests.dataset_maker import DatasetMaker
from fib_tests.hub import Hub, hub
from flashinfer_bench.data.blobs import present_blob, resolve_blob
from flashinfer_bench.errors import ConfigError, UnsafePathError

if TYPE_CHECKING:
    from collections.abc import Iterator

REPO = "somebody/traces"
BLOB = "blob/workloads/gemm/gemm_n8_k4/w.safetensors"


@pytest.fixture
def server() -> Iterator[Hub]:
    with hub() as made:
        yield made


@pytest.fixture
def files(make: Any) -> dict[str, bytes]:
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

    def __init__(self, server: Hub, home: Path) -> None:
        self.variables = {"HF_ENDPOINT": server.endpoint, "HF_HOME": str(home), "HF_TOKEN": ""}

    def __call__(self, code: str, *arguments: str, **variables: str) -> Any:
        """Run `code`, which is to leave an answer that JSON can hold in `answer`."""
        command = [sys.executable, "-c", f"{_BEFORE}{code}{_AFTER}", *arguments]
        environment = {**os.environ, **self.variables, **variables}
        done = forked.run(command, env=environment, timeout=600)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def download(self, dataset: str, **variables: str) -> Any:
        """Return the folder; of an error its class, message and hint."""
        return self(
            "answer = str(download_dataset(HubDataset.parse(argv[1])))", dataset, **variables
        )

    def blob(self, root: str, path: str, **variables: str) -> Any:
        """Return whether it is there."""
        return self("answer = fetch_blob(Path(argv[1]), argv[2])", root, path, **variables)


_BEFORE = """
import json
from pathlib import Path
from sys import argv
from fib_datasets.hub import *
from flashinfer_bench.data.blobs import present_blob
from flashinfer_bench.errors import FibError
def ask():
    """
_AFTER = """
    return answer
try:
    print(json.dumps(ask()))
except FibError as error:
    print(json.dumps([type(error).__name__, error.message, error.hint]))
"""


@pytest.fixture
def ask(server: Hub, tmp_path: Path) -> Asker:
    pytest.importorskip("huggingface_hub")
    return Asker(server, tmp_path / "home")


def names(root: str) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in Path(root).rglob("*.*"))


class TestNames:
    @pytest.mark.parametrize(
        ("text", "repo", "revision"),
        [
            ("org/name", "org/name", None),
            ("name", "name", None),
            ("org/name@v1.0", "org/name", "v1.0"),
            ("o.r-g_/n@refs/pr/3", "o.r-g_/n", "refs/pr/3"),
        ],
    )
    def test_sound(self, text: str, repo: str, revision: str | None) -> None:
        found = HubDataset.parse(text)
        assert found == (repo, revision)
        assert str(found) == text

    @pytest.mark.parametrize(
        "text",
        ["", "@", "a/b/c", "a/b@", "../b", "a/..", "a/b@..", "a/b@x/../y", "a b", "a/b@c@d", "/a",
         "a/b\n", "ä/b"],
    )  # fmt: skip
    def test_unsound(self, text: str) -> None:
        with pytest.raises(ConfigError, match="is not a dataset of the hub") as caught:
            HubDataset.parse(text)
        assert "ORGANISATION/NAME@REVISION" in str(caught.value.hint)


class TestDownload:
    def test_json_comes_and_nothing_else(self, server: Hub, files: Any, ask: Asker) -> None:
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

    def test_revisions(self, server: Hub, files: Any, ask: Asker) -> None:
        old = server.publish(REPO, files)
        newer = {**files, "definitions/gemm/gemm_n8_k4.json": files.pop("README.md")}
        new = server.publish(REPO, newer)
        server.publish(REPO, files, branch="stable")
        assert Path(ask.download(REPO)).name == new
        assert Path(ask.download(f"{REPO}@{old}")).name == old
        root = Path(ask.download(f"{REPO}@stable"))
        assert root.name not in (old, new)

    def test_a_branch_that_moves_on_meanwhile(self, server: Hub, files: Any, ask: Asker) -> None:
        """What comes second is of the commit that came first."""
        first = server.publish(REPO, files)
        find = server.find

        def find_and_move(repo: str, revision: str) -> Any:
            found = find(repo, revision)
            if revision == "main":
                server.publish(REPO, {**files, "traces/new.jsonl": b"{}"})
            return found

        server.find = find_and_move  # type: ignore[method-assign]
        root = ask.download(f"{REPO}@main")
        assert Path(root).name == first
        assert "traces/new.jsonl" not in names(root)

    def test_hostile_names_of_files(
        self, server: Hub, files: Any, ask: Asker, tmp_path: Path
    ) -> None:
        evil = {"definitions/../../../../../evil.json": b"{}"}
        server.publish(REPO, {**files, **evil})
        ask.download(REPO)
        found = [path for path in tmp_path.rglob("evil.json") if "snapshots" not in path.parts]
        assert not found
        assert not list(tmp_path.parent.glob("evil.json"))


class TestCommands:
    """``--hub`` of ``fib``."""

    @pytest.mark.torch
    def test_without_a_name_it_is_the_public_dataset(
        self, server: Hub, ask: Asker, tmp_path: Path
    ) -> None:
        root = DatasetMaker(tmp_path / "dataset").sound().root
        paths = root.rglob("*.json*")
        files = {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
        server.publish("flashinfer-ai/flashinfer-trace", files)

        def fib(*words: str) -> Any:
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


class TestErrors:
    @pytest.mark.parametrize(
        ("dataset", "problem", "remedy"),
        [
            ("nobody/nothing", "'nobody/nothing' of the hub does not exist", "hf auth login"),
            (f"{REPO}@never", "has no revision 'never'", "default branch"),
            ("some/secret", "is restricted", "request access"),
        ],
    )
    def test_what_is_not_to_be_had(
        self, server: Hub, files: Any, ask: Asker, dataset: str, problem: str, remedy: str
    ) -> None:
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
    def test_what_was_fetched_before_is_used(
        self, server: Hub, files: Any, ask: Asker, variables: dict[str, str]
    ) -> None:
        server.publish(REPO, files)
        root = ask.download(REPO)
        assert ask.download(REPO, **variables) == root
        kind, message, hint = ask.download("nobody/nothing", **variables)
        assert kind == "DatasetNotFoundError"
        assert "is unreachable" in message
        assert "HF_HUB_OFFLINE" in hint

    def test_without_the_library(self, ask: Asker) -> None:
        code = (
            "import sys; sys.modules['huggingface_hub'] = None; "
            "answer = str(download_dataset(HubDataset.parse(argv[1])))"
        )
        kind, message, hint = ask(code, REPO)
        assert kind == "CapabilityError"
        assert "huggingface_hub, which is not installed" in message
        assert "pip install huggingface_hub" in hint


class TestBlobs:
    def test_they_come_when_somebody_reads_them(self, server: Hub, files: Any, ask: Asker) -> None:
        server.publish(REPO, files)
        root = ask.download(REPO)
        server.asked.clear()
        path = ask("answer = str(present_blob(Path(argv[1]), './' + argv[2]))", root, BLOB)
        assert server.asked == [BLOB]
        assert Path(path).read_bytes() == files[BLOB]
        assert ask.blob(root, BLOB)
        assert server.asked == [BLOB]

    def test_one_that_is_not_there(self, server: Hub, files: Any, ask: Asker) -> None:
        server.publish(REPO, files)
        kind, message, _ = ask.blob(ask.download(REPO), "blob/none.safetensors")
        assert kind == "BlobError"
        assert "'blob/none.safetensors' of the dataset 'somebody/traces'" in message
        assert "does not exist" in message

    def test_of_the_same_commit(self, server: Hub, files: Any, ask: Asker) -> None:
        server.publish(REPO, files)
        root = ask.download(REPO)
        server.publish(REPO, {**files, BLOB: b"of another commit"})
        path = ask("answer = str(present_blob(Path(argv[1]), argv[2]))", root, BLOB)
        assert Path(path).read_bytes() == files[BLOB]

    @pytest.mark.parametrize("path", ["../x", "/etc/passwd", "blob/../../../../x"])
    def test_paths_stay_inside(self, path: str, tmp_path: Path) -> None:
        root = tmp_path / "datasets--a--b" / "snapshots" / "0123"
        root.mkdir(parents=True)
        with pytest.raises(UnsafePathError):
            present_blob(root, path)

    def test_other_folders_have_nothing_to_do_with_it(self, tmp_path: Path) -> None:
        root = tmp_path / "datasets--some--body" / "snapshots" / "0123"
        assert dataset_of(root) == HubDataset("some/body", "0123")
        assert dataset_of(tmp_path) is None
        assert not fetch_blob(tmp_path, "blob/x.safetensors")
        assert present_blob(tmp_path, "blob/x") == resolve_blob(tmp_path, "blob/x")
