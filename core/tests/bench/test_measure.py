from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from flashinfer_bench.bench.calls import Deadline, measure
from flashinfer_bench.bench.stopping import TimingPlan
from flashinfer_bench.tensors.vary import Freedom


class TestMeasure:
    def take(self, source: str, executor: Any, problems: Any, session: Any, **rounds: Any) -> Any:
        candidate = executor.spawn()
        candidate.load(problems.definition(), problems.solution(source), timeout_s=1.0)
        inputs = [[torch.full((4, 3), float(slot))] for slot in range(2)]
        for slot, values in enumerate(inputs):
            candidate.put_inputs(slot, values, {"n": 4}, ways=["signs"], timeout_s=1.0)
        wanted = TimingPlan.fixed(**{"count": 2, "warmup": 1, "iterations": 3, **rounds})
        free = [Freedom("signs")]
        return measure(
            SimpleNamespace(
                session=session(),
                worker=SimpleNamespace(candidate=candidate),
                freedoms=free,
                inputs=inputs,
                deadline=Deadline(9.0),
            ),
            wanted,
        )

    def test_inputs_vary_as_they_do_without_trust(
        self, executor: Any, problems: Any, session: Any
    ) -> None:
        source = """
            seen = set()
            def run(x):
                assert set(x.abs().flatten().tolist()) in ({0.0}, {1.0}), "written by another call"
                seen.add(tuple(x.flatten().tolist()))
                SAMPLES[:] = [float(len(seen))]
                return x.fill_(7.0)
            SAMPLES = [1.0]
        """
        found = self.take(source, executor, problems, session, iterations=30)
        assert max(found.samples_ms) > 9.0

    def test_device_is_locked_meanwhile(self, executor: Any, problems: Any, session: Any) -> None:
        source = """
            from filelock import FileLock, Timeout
            from flashinfer_bench.bench.locks import lock_path
            def run(x):
                try:
                    FileLock(lock_path("cpu")).acquire(timeout=0)
                except Timeout:
                    return x
                raise AssertionError("anybody could time now")
        """
        self.take(source, executor, problems, session)
