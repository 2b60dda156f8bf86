"""What the interpreter needs help with, and what has to be said about it."""

import threading

import pytest
import torch

from flashinfer_bench.data import Definition

HEAD = "import torch\nimport triton\nimport triton.language as tl\n"
TUNED = """
@triton.autotune(
    configs=[triton.Config({"BLOCK": 8}), triton.Config({"BLOCK": 16})], key=["n"] MORE
)
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    old = tl.load(out + at, mask=at < n)
    tl.store(out + at, old + BLOCK, mask=at < n)

def run(x, y, scale):
    out = torch.zeros_like(x)
    kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return out
"""


def tuned(more=""):
    return HEAD + TUNED.replace(" MORE", more)


pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.fixture
def bfloat16(definition):
    """The same definition with one input in bfloat16."""
    record = definition.model_dump(mode="json", exclude_unset=True)
    record["inputs"]["x"]["dtype"] = "bfloat16"
    return Definition.model_validate(record)


def test_autotuning_takes_the_first_configuration_and_runs_once(build, make_solution, inputs):
    runnable = build(make_solution(tuned()))
    for _ in range(2):
        assert torch.equal(runnable(*inputs), torch.full((3, 8), 8.0))


def test_threads_wait_for_one_another(build, make_solution, inputs):
    runnables = [build(make_solution(name=f"solution {i}")) for i in range(4)]
    x, y, scale = inputs
    wrong = []

    def call(runnable):
        for _ in range(10):
            try:
                if not torch.equal(runnable(x, y, scale), (x + y) * scale):
                    wrong.append("another result")
            except Exception as error:  # noqa: BLE001 - whatever a thread raises is shown
                wrong.append(error)

    threads = [threading.Thread(target=call, args=(runnable,)) for runnable in runnables]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("upcast", [True, False])
def test_the_note_about_bfloat16_is_true(build, make_solution, bfloat16, upcast):
    # Should the second case ever come out right, the note can go.
    source = (
        HEAD + "@triton.jit\n"
        "def kernel(x, out, B: tl.constexpr):\n"
        "    at = tl.arange(0, B)\n"
        f"    v = tl.load(x + at){'.to(tl.float32)' if upcast else ''}\n"
        "    tl.store(out + at, (v + v).to(tl.float32))\n"
        "def run(x, y, scale):\n"
        "    out = torch.empty(8)\n"
        "    kernel[(1,)](x, out, B=8)\n"
        "    return out\n"
    )
    x = torch.full((1, 8), 2.5, dtype=torch.bfloat16)
    found = build(make_solution(source), bfloat16)(x, x, 1.0)
    assert torch.equal(found, torch.full((8,), 5.0)) is upcast
