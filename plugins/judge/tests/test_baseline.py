from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.digests import trial_seed
from flashinfer_bench.bench.measurement import ReferenceFailed


class TestContent:
    def test_one_input_set_per_trial(self, prepare):
        baseline = prepare()
        assert [trial.index for trial in baseline.trials] == [0, 1]
        assert [trial.seed for trial in baseline.trials] == [trial_seed(11, 0), trial_seed(11, 1)]
        first, second = (trial.inputs[0] for trial in baseline.trials)
        assert first.shape == (4, 3)
        assert not torch.equal(first, second)
        for trial in baseline.trials:
            assert torch.equal(trial.expected[0], trial.inputs[0] * 2)

    def test_wider_type_is_kept(self, prepare, problems):
        reference = "def run(x):\n    return x.double() * 2"
        assert prepare(reference).trials[0].expected[0].dtype == torch.float64


class TestFailure:
    @pytest.mark.parametrize(
        ("reference", "text"),
        [
            ("raise OSError('no such library')\ndef run(x): pass", r"\(load\): no such library"),
            ("def run(x):\n    return x @ x", r"\(call\): "),
            ("def run(x):\n    raise Crash", r"\(call\): was killed by SIGSEGV"),
            ("def run(x):\n    raise Hang", r"\(call\): no answer"),
            ("def run(x):\n    raise Misbehave", r"\(call\): bad frame"),
            ("def run(x):\n    return x, x", "2 outputs instead of 1"),
            ("def run(x):\n    return x[0]", r"shape \[3\] instead of \[4, 3\]"),
            ("def run(x):\n    return x.int()", "dtype torch.int32 instead of torch.float32"),
        ],
    )
    def test_is_named_as_the_references(self, reference, text, prepare, problems, executor):
        with pytest.raises(ReferenceFailed, match=text) as caught:
            prepare(reference)
        assert "the reference of definition 'double'" in caught.value.message
        assert executor.of("close") == [(1000,)]
