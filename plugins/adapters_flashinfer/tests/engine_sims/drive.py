"""Run an engine as it is, with everything enabled, and with everything disabled again.

Called as ``drive.py ENGINE DATASET``; prints what happened as JSON.
"""

import contextlib
import importlib
import json
import os
import sys
import warnings
from collections import Counter
from functools import partial, partialmethod
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))
if os.environ.get("FIB_TEST_FLASHINFER"):
    sys.path.insert(0, os.environ["FIB_TEST_FLASHINFER"])
warnings.simplefilter("ignore")

ENGINES = {
    "sglang": ("sglang_like", {}),
    "vllm": ("vllm_like", {"layout": "NHD"}),
    "vllm-hnd": ("vllm_like", {"layout": "HND"}),
    "vllm-packed": ("vllm_like", {"layout": "NHD", "packed": True}),
    "vllm-packed-hnd": ("vllm_like", {"layout": "HND", "packed": True}),
}


def load(module):
    """Import an engine anew, so that it takes what is in FlashInfer now."""
    sys.modules.pop(f"engine_sims.{module}", None)
    return importlib.import_module(f"engine_sims.{module}")


def classes():
    """Return what a patch could change, by path: attributes of modules and of classes."""
    import flashinfer
    import flashinfer.mla

    found = {}
    for module in (flashinfer, flashinfer.norm, flashinfer.decode, flashinfer.prefill):
        for name, value in vars(module).items():
            if callable(value):
                found[f"{module.__name__}.{name}"] = value
            if isinstance(value, type) and "Wrapper" in name:
                found.update(methods(value))
    return {**found, **methods(flashinfer.mla.BatchMLAPagedAttentionWrapper)}


def methods(owner):
    """Return what can be called of a class: FlashInfer notes there what it has warned of."""
    kinds = (partialmethod, staticmethod, classmethod)
    return {
        f"{owner.__qualname__}.{name}": value
        for name, value in vars(owner).items()
        if callable(value) or isinstance(value, kinds)
    }


def differing(left, right):
    """Return the names under which two steps computed something else."""
    import torch

    wrong = []
    for name in left:
        pairs = zip(flat(left[name]), flat(right[name]), strict=True)
        if not all(torch.allclose(a.float(), b.float(), atol=3e-2, rtol=3e-2) for a, b in pairs):
            wrong.append(name)
    return wrong


def flat(value):
    return value if isinstance(value, tuple) else (value,)


def same_objects(before, after):
    return [path for path in before if before[path] is not after.get(path)]


@contextlib.contextmanager
def capturing(cpu):
    cpu.capturing = True
    try:
        yield
    finally:
        cpu.capturing = False


def report(name, dataset):
    import flashinfer
    from cpu import cpu_flashinfer

    from engine_sims import answers

    module, options = ENGINES[name]
    said = {"version": flashinfer.__version__}
    with cpu_flashinfer("norm", "decode", "prefill", "mla") as cpu:
        before = classes()
        early = load(module)
        by_value = {each: getattr(early, each) for each in early.BY_VALUE}
        make = partial(early.Engine, partial(capturing, cpu), **options)
        engine = make()
        plain = engine.step()
        said["original kernels"] = dict(cpu.calls)
        cpu.calls.clear()

        from flashinfer_bench import disable_apply, disable_tracing, enable_apply, enable_tracing
        from flashinfer_bench.routing.installation import default
        from flashinfer_bench.routing.routes import route_stats

        said["touched by importing"] = same_objects(before, classes())
        counts = Counter()
        solutions = answers.solutions(counts)
        enable_tracing(dataset)
        enable_apply(solutions)
        said["statuses"] = Counter(each.state for each in default().statuses())
        said["wrong"] = differing(plain, engine.step())
        said["kernels"] = dict(cpu.calls)
        said["solutions"] = dict(counts)
        said["refused"] = {
            label.rpartition("flashinfer.")[2]: each["refused"]
            for label, each in route_stats().items()
            if each["refused"]
        }
        said["rebound"] = [each for each in by_value if getattr(early, each) is not by_value[each]]
        late = load(module)
        said["wrong, imported late"] = differing(plain, late.Engine(make.args[0], **options).step())
        disable_apply()
        disable_tracing()
        said["left behind"] = same_objects(before, classes())
        for where in (early, late):
            said["left behind"] += [e for e in by_value if getattr(where, e) is not by_value[e]]
        counts.clear()
        cpu.calls.clear()
        said["wrong, afterwards"] = differing(plain, engine.step())
        said["solutions, afterwards"] = dict(counts)
        said["kernels, afterwards"] = dict(cpu.calls)
    return said


if __name__ == "__main__":
    print(json.dumps(report(sys.argv[1], sys.argv[2])))
