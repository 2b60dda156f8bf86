"""Kernels that Triton compiles for a real GPU. Run with ``pytest -m gpu``."""

import sys

import pytest
import torch

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def compiled():
    """Need a process in which Triton compiles."""
    language = sys.modules.get("triton.language")
    if language is not None and type(language.sum).__name__ == "InterpretedFunction":
        pytest.skip("this process has imported triton for its interpreter: run pytest -m gpu")


def test_kernels_run_on_the_current_stream(build, make_solution, on_gpu):
    runnable = build(make_solution())
    x, y, scale = on_gpu
    runnable(x, y, scale)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        x.fill_(3.0)
        found = runnable(x, y, scale)
    stream.synchronize()
    # On another stream the kernel would not have waited for the 3.
    assert torch.equal(found, (torch.full_like(y, 3.0) + y) * scale)
