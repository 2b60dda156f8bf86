"""Configurations of autotuned kernels, compiled for a GPU that is not there."""

import json

from fib_tests.scaled_add import run_on

TUNED = """
import triton
import triton.language as tl

def before(values):
    seen.append(values["BLOCK"])

seen = []
many = [triton.Config({"BLOCK": block}, pre_hook=before) for block in (8, 16, 32, 64)]

def first_three(configs, *_, **__):
    return iter(configs[:3])

@triton.autotune(many, key=["n"], prune_configs_by={"early_config_prune": first_three})
@triton.heuristics({"LESS": lambda values: values["BLOCK"] // 2})
@triton.jit
def kernel(x, n, BLOCK: tl.constexpr, LESS: tl.constexpr):
    tl.static_assert(LESS != 8, "not this one")
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + LESS, mask=at < n)

def run(x, y, scale):
    kernel[(1,)](x, x.numel())
"""
# Launching raises, for want of a GPU. All that comes before it is Triton's own.
TRY = """
import json, sys, torch, triton
from triton.backends.compiler import GPUTarget
from fib_builder_triton.builder import TritonBuilder

class Driver:
    launcher_cls = property(lambda self: 1 / 0)

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_benchmarker(self):
        def measure(call, quantiles):
            tried.append(len(compiled))
            try:
                call()
            except ZeroDivisionError:
                pass
            return [float(len(tried))] * 3
        return measure

tried, compiled = [], []
triton.runtime.driver.set_active(Driver())
triton.knobs.runtime.jit_post_compile_hook = lambda **_: compiled.append(1)
runnable = TritonBuilder().build(definition, solution)
found = []
for size in (40, 40, 48):
    try:
        runnable(torch.ones(size), None, 1.0)
    except ZeroDivisionError:
        kernel = sys.modules[runnable.metadata.misc["package"] + ".main"].kernel
        times = {c.kwargs["BLOCK"]: time for c, time in kernel.configs_timings.items()}
        failed = [block for block, time in times.items() if time[0] == float("inf")]
        found.append([list(tried), len(compiled), failed, kernel.best_config.kwargs["BLOCK"]])
print(json.dumps([found, sys.modules[kernel.fn.fn.module].seen[:6]]))
"""


def test_all_are_compiled_before_the_first_is_tried(definition, make_solution):
    done = run_on(TRY, definition, make_solution(TUNED))
    (first, same, other), hooks = json.loads(done.stdout.splitlines()[-1])
    # Of three that are not pruned two can be compiled; the other one is no error.
    assert first == [[2, 2, 2], 2, [16], 8]
    assert same == first
    # For other arguments they are tried again, and compiled only where these make a difference.
    assert other[0][3:] == [other[1]] * 3
    assert other[2:] == first[2:]
    assert hooks == [8, 16, 32] * 2  # when they are compiled, and when they are tried
