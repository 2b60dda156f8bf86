"""Which runs a command line means."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.replay.result import Target
from flashinfer_bench.bench.replay.targets import (
    dataset_of,
    latest,
    matching,
    read_targets,
    split_place,
)
from flashinfer_bench.data import Environment, Evaluation, Trace
from flashinfer_bench.errors import ConfigError, DatasetNotFoundError, SelectionError, StorageError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def trace(problems: Any) -> Any:
    def make(timestamp: str = "2026-01-01T00:00:00", solution: str = "s", uuid: str = "w") -> Trace:
        return Trace(
            definition="double",
            workload=problems.workload(uuid=uuid),
            solution=solution,
            evaluation=Evaluation(
                status="TIMEOUT", environment=Environment(hardware="x"), timestamp=timestamp
            ),
        )

    return make


class TestPlaces:
    @given(st.integers(1, 10**8))
    def test_a_line(self, tmp_path_factory: Any, line: int) -> None:
        file = tmp_path_factory.getbasetemp() / "a.jsonl"
        file.touch()
        assert split_place(f"{file}:{line}") == (file, line)
        assert split_place(str(file)) == (file, None)

    def test_a_file_that_is_called_so(self, tmp_path: Path) -> None:
        file = tmp_path / "a:3"
        file.touch()
        assert split_place(str(file)) == (file, None)
        assert split_place(f"{file}:4") == (file, 4)

    @given(st.text("0:x-²٣ ", max_size=5))
    def test_never_anything_but_a_named_error(self, tmp_path_factory: Any, tail: str) -> None:
        file = tmp_path_factory.getbasetemp() / "b.jsonl"
        file.touch()
        with pytest.raises(ConfigError):
            split_place(f"{file}:{tail}")

    def test_the_nearest_dataset(self, tmp_path: Path) -> None:
        inner = tmp_path / "outer/inner"
        for root in (inner, inner.parent):
            (root / "definitions").mkdir(parents=True)
        assert dataset_of(inner / "traces/op/x.jsonl") == inner.resolve()
        assert dataset_of(inner.parent / "x.jsonl") == inner.parent.resolve()
        with pytest.raises(DatasetNotFoundError, match="lies in no dataset"):
            dataset_of(tmp_path / "x.jsonl")


class TestLines:
    def test_runs_and_what_is_broken(self, tmp_path: Path, trace: Any, problems: Any) -> None:
        file = tmp_path / "t.jsonl"
        workload = Trace(definition="double", workload=problems.workload())
        good = trace().model_dump_json(exclude_none=True)
        rest = [workload.model_dump_json(exclude_none=True), "[]", "", good]
        file.write_text("\n".join([good, *rest]) + "\n" + good[:40])
        found = read_targets(file)
        assert [one.line for one in found] == [1, 3, 5]
        assert [one.trace is None for one in found] == [False, True, False]
        assert found[1].problem.startswith("this is no trace")
        assert found[1].place == f"{file}:3"
        with pytest.raises(SelectionError, match=":2 is a workload"):
            read_targets(file, 2)
        with pytest.raises(SelectionError, match=":4 has no run"):
            read_targets(file, 4)

    def test_one_document_over_several_lines(self, tmp_path: Path, trace: Any) -> None:
        file = tmp_path / "t.json"
        file.write_text(json.dumps(json.loads(trace().model_dump_json()), indent=2))
        (one,) = read_targets(file)
        assert (one.line, one.place, one.trace) == (None, str(file), trace())

    def test_a_file_that_cannot_be_read(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="cannot be read"):
            read_targets(tmp_path)

    @given(st.binary(max_size=200))
    def test_any_bytes(self, tmp_path_factory: Any, content: bytes) -> None:
        file = tmp_path_factory.getbasetemp() / "any.jsonl"
        file.write_bytes(content)
        try:
            found = read_targets(file)
        except SelectionError:
            return
        assert all(one.trace is None for one in found)


class TestSelection:
    def test_filters(self, trace: Any) -> None:
        targets = [Target(trace(solution=s, uuid=u)) for s in "ab" for u in ("w1", "w2")]
        assert matching(targets, solutions=["b"], workloads=["w1"]) == [targets[2]]
        assert matching(targets, workloads=["w"]) == targets
        with pytest.raises(SelectionError, match="no recorded run"):
            matching(targets, definitions=["other"])

    def test_the_latest_whatever_the_spelling(self, trace: Any) -> None:
        times = ["2026-03-01T00:00:00Z", "2026-03-01T00:30:00+01:00", "2025-01-01", "never"]
        targets = [Target(trace(timestamp=one)) for one in times]
        assert latest(targets) == [targets[3], targets[2], targets[1], targets[0]]
        assert latest(targets, 1) == [targets[0]]
        assert latest([Target(None)], 3) == [Target(None)]
