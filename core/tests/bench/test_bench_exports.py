from __future__ import annotations

import subprocess
import sys

import pytest

import flashinfer_bench.bench as bench

OWED = (
    "BaselineHandle Benchmark BenchmarkConfig DeviceBaseline EvalConfig IsolatedRunner "
    "PersistentRunner ResolvedEvalConfig RunnerError RunnerFatalError resolve_evaluator"
)


@pytest.mark.parametrize("name", sorted({*OWED.split(), *bench.__all__}))
def test_every_name_is_there(name: str) -> None:
    assert name in bench.__all__
    assert name in dir(bench)
    assert getattr(bench, name).__name__ == name


def test_import_is_light_and_that_of_the_whole_loop_needs_no_torch() -> None:
    code = (
        "import sys, flashinfer_bench.bench; heavy = {'torch', 'numpy', 'rich'}; "
        "assert not {*heavy, 'pydantic', 'yaml', 'filelock'} & set(sys.modules); "
        "from flashinfer_bench.bench import Benchmark, BenchmarkConfig, "
        "IsolatedRunner, DefaultEvaluator; BenchmarkConfig.default(); "
        "assert not heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
