import subprocess
import sys

import flashinfer_bench.bench as bench

OWED = {
    *("BaselineHandle", "DeviceBaseline", "EvalConfig", "IsolatedRunner", "PersistentRunner"),
    *("ResolvedEvalConfig", "RunnerError", "RunnerFatalError", "resolve_evaluator"),
}


def test_every_name_is_there():
    assert set(bench.__all__) > OWED
    assert set(bench.__all__) <= set(dir(bench))
    assert [getattr(bench, name).__name__ for name in bench.__all__] == [*bench.__all__]


def test_the_whole_loop_needs_no_torch():
    code = (
        "import sys; from flashinfer_bench.bench import Benchmark, BenchmarkConfig, "
        "IsolatedRunner, DefaultEvaluator; BenchmarkConfig.default(); "
        "assert not {'torch', 'numpy', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
