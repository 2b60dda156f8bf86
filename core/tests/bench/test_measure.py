from __future__ import annotations

from typing import Any

import torch

from fib_tests.scripted import attempt_of
from flashinfer_bench.bench.calls import measure
from flashinfer_bench.bench.stopping import TimingPlan
from flashinfer_bench.tensors.vary import Freedom


class TestMeasure:
    def take(self, source: str, executor: Any, problems: Any, session: Any, **rounds: Any) -> Any:
        inputs = [[torch.full((4, 3), float(slot))] for slot in range(2)]
        free = [Freedom("signs")]
        attempt = attempt_of(session(), executor, problems, source, inputs, free)
        wanted = TimingPlan.fixed(**{"count": 2, "warmup": 1, "iterations": 3, **rounds})
        return measure(attempt, wanted)

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
            from flashinfer_bench.bench.locks import device_lock
            def run(x):
                with device_lock("cpu", lambda: True) as held:
                    assert not held, "anybody could time now"
                return x
        """
        self.take(source, executor, problems, session)
