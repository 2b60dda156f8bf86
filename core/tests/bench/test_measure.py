from __future__ import annotations

from typing import Any

import torch

from fib_tests.scripted import attempt_of
from flashinfer_bench.bench.calls import Measurement, measure
from flashinfer_bench.bench.stopping import TimingPlan


class TestMeasure:
    def take(self, source: str, executor: Any, problems: Any, session: Any) -> Measurement:
        inputs = [[torch.full((4, 3), float(slot))] for slot in range(2)]
        attempt = attempt_of(session(), executor, problems, source, inputs)
        return measure(attempt, TimingPlan.fixed(count=2, warmup=1, iterations=3))

    def test_input_sets_take_turns(self, executor: Any, problems: Any, session: Any) -> None:
        source = """
            SAMPLES = [3.0]
            def run(x):
                SAMPLES[:] = [1.0 + x[0, 0].item()]
                return x
        """
        found = self.take(source, executor, problems, session)
        slots = [slot for _, slot, _ in executor.of("fire")]
        assert slots == [0, 1] * 4
        counted = [place for place in range(8) if place % 4]  # a warm-up comes first in each round
        assert found.samples_ms == tuple(1.0 + slots[place] for place in counted)

    def test_device_is_locked_meanwhile(self, executor: Any, problems: Any, session: Any) -> None:
        source = """
            from flashinfer_bench.bench.locks import device_lock
            def run(x):
                with device_lock("cpu", lambda: True) as held:
                    assert not held, "anybody could time now"
                return x
        """
        self.take(source, executor, problems, session)
