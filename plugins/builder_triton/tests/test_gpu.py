"""Kernels that Triton compiles for a real GPU. Run with ``pytest -m gpu``."""

import sys

import pytest
import torch

pytestmark = pytest.mark.gpu

MANY = "[triton.Config({'BLOCK': 2**power}) for power in range(4, 10)]"
TUNED = {
    "@triton.jit": f"@triton.autotune({MANY}, key=['n'])\n@triton.jit",
    "(triton.cdiv(x.numel(), 32),)": "lambda meta: (triton.cdiv(x.numel(), meta['BLOCK']),)",
    ", BLOCK=32)": ")",
}
"""How the kernel that has one configuration becomes one that has six."""


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


def test_tuned_kernels_whose_configurations_are_compiled_together(build, make_solution, on_gpu):
    x, y, scale = on_gpu
    source = make_solution().sources[0].content
    for old, new in TUNED.items():
        assert old in source
        source = source.replace(old, new)
    runnable = build(make_solution(source))
    for _ in range(2):
        assert torch.equal(runnable(x, y, scale), (x + y) * scale)


def test_workers_are_forked_from_what_has_not_opened_the_device(in_child):
    done = in_child(
        "import os, threading, torch, fib_builder_triton.preload\n"
        "print(threading.active_count(), torch.cuda.is_initialized(), flush=True)\n"
        "if not os.fork():\n"
        "    torch.ones(1, device='cuda').add(1).item()\n"
        "    os._exit(0)\n"
        "print(os.wait()[1])\n"
    )
    assert done.stdout.split() == ["1", "False", "0"]
