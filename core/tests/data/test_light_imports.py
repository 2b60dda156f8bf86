"""Reading, listing, summarising and writing data imports no torch and no numpy."""

from __future__ import annotations

from textwrap import dedent

from fib_tests.records import Python

HEAVY = ["torch", "numpy", "triton", "safetensors", "rich", "typer", "pandas"]


def run_in_process(script, *args):
    code = dedent(script) + dedent(
        f"""
        import sys
        print("loaded:", *[name for name in {HEAVY!r} if name in sys.modules])
        """
    )
    return Python.run(code, *args).splitlines()[-1]


def test_the_whole_life_of_a_dataset(dataset):
    script = """
        import sys
        from flashinfer_bench.data import TraceSet
        trace_set = TraceSet.from_path(sys.argv[1])
        traces = trace_set.traces["gemm_n8_k4"]
        assert len(trace_set.run_rows()) == 3
        trace_set.get_best_trace("gemm_n8_k4", {"M": 2})
        trace_set.filter_traces("gemm_n8_k4")
        trace_set.to_dict()
        trace_set.add_traces(traces[:1])
        trace_set.backup_traces()
        definition = trace_set.definitions["gemm_n8_k4"]
        definition.get_axes_values([(3, 4), (8, 4)])
        definition.get_output_shapes({"M": 3})
    """
    assert run_in_process(script, dataset) == "loaded:"


def test_without_torch_tensors_say_what_is_missing(dataset, tmp_path):
    for name in ("torch", "safetensors"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('no {name}', name='{name}')")
    script = """
        import sys
        sys.path.insert(0, sys.argv[2])
        from flashinfer_bench.data import TraceSet
        from flashinfer_bench.errors import CapabilityError
        trace_set = TraceSet.from_path(sys.argv[1])
        for use in (
            lambda: trace_set.get_workload_blob_tensor("x"),
            lambda: trace_set.definitions["gemm_n8_k4"].torch_input_dtypes,
        ):
            try:
                use()
            except CapabilityError as error:
                assert "not installed" in str(error)
                assert "pip install" in error.hint
            else:
                raise AssertionError
    """
    assert run_in_process(script, dataset, tmp_path) == "loaded:"
