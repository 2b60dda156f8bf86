"""Programs written for earlier releases: the names that they import, and how they call them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import flashinfer_bench  # noqa: E402
from fib_tests import runtime_dataset  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_the_cpu")


# As in `test_api_parity`: "=" marks what may be left out, "*" what is given by keyword only.


@pytest.mark.plugin("python")
class TestPrograms:
    """The examples of the documents that users know."""

    @pytest.fixture
    def path(self, tmp_path):
        return str(runtime_dataset.sample(tmp_path / "dataset").root)

    def test_the_handle(self, path):
        from flashinfer_bench.apply import ApplyConfig, apply, disable_apply, enable_apply

        cfg = ApplyConfig(max_atol=1e-2, max_rtol=1e-5, aot_ratio=1.0)
        enable_apply(path, cfg)
        x = torch.zeros(2, 4)
        out = apply("double", runtime_kwargs={"x": x}, fallback=lambda **kw: kw["x"] * 2)
        assert out[0, 0] == 100
        disable_apply()
        out = apply("double", runtime_kwargs={"x": x}, fallback=lambda **kw: kw["x"] * 2)
        assert out[0, 0] == 0

    def test_the_decorator(self, path):

        @flashinfer_bench.apply("double")
        def double(x):
            return x * 2

        @flashinfer_bench.apply(lambda x, bias=None: f"gemm_n_{x.shape[0]}_k_{x.shape[1]}")
        def gemm(x, bias=None):
            return x * 2

        with flashinfer_bench.enable_apply(path):
            assert double(torch.zeros(2, 4))[0, 0] == 100
            assert gemm(torch.zeros(2, 4))[0, 0] == 0

    def test_a_mapping(self):
        from flashinfer_bench.apply import apply, disable_apply, enable_apply, stats

        @apply("double")
        def double(x):
            return x * 2

        count = enable_apply({"double": lambda x: x * 2 + 5})
        assert isinstance(count, int)
        assert count >= 1
        x = torch.zeros(2, 4)
        assert double(x)[0, 0] == 5
        assert any(each["hit"] == 1 for each in stats().values())
        enable_apply({"double": lambda x: x * 2 + 6})
        assert double(x)[0, 0] == 6
        disable_apply()
        assert double(x)[0, 0] == 0
