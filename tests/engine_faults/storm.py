"""The faults. Called as ``storm.py FAULT FOLDER``; prints what came of it as JSON.

A fault is a function of a rig and a folder. It returns whether it struck: a fault that nobody had
to cope with would prove nothing.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import sys
import threading
import time
import weakref
from pathlib import Path

if __package__ in (None, ""):
    sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from tests.engine_faults.rig import Kernel, Rig

kept = []
"""What has to stay to the end."""

ROUNDS = 25
"""How often everything is enabled and disabled in a storm."""


def enabled(rig, dataset, *, apply=True):
    """Trace into a dataset, and apply; return the tracing runtime, and what ends both."""
    import flashinfer_bench as fib

    tracing = fib.enable_tracing(dataset)
    if apply:
        fib.enable_apply(rig.mapping)

    def end():
        if apply:
            fib.disable_apply()
        fib.disable_tracing()

    return tracing, end


def dataset_in(folder):
    from engine_sims import answers

    root = folder / "dataset"
    answers.write_dataset(root)
    return root


# --------------------------------------------------------------------------------- definitions


def unknown_definitions(rig, folder):
    """Nothing that is enabled is ever called, though its names match what is patched."""
    import flashinfer_bench as fib
    from flashinfer_bench.routing.routes import route_stats

    dataset = folder / "dataset"
    dataset_in(folder)
    for path in list((dataset / "definitions").rglob("*.json")):
        text = path.read_text(encoding="utf-8")
        for old, new in (("_h64", "_h63"), ("_h4_", "_h3_")):
            text = text.replace(old, new)
        path.with_name(path.name.replace("_h64", "_h63").replace("_h4_", "_h3_")).write_text(text)
        path.unlink()
    fib.enable_tracing(dataset)
    fib.enable_apply({name.replace("_h", "_h1"): each for name, each in rig.mapping.items()})
    rig.run()
    fib.disable_apply()
    fib.disable_tracing()
    seen = sum(each["calls"] for each in route_stats().values())
    return not rig.solutions and seen and not any((dataset / "workloads").rglob("*.jsonl"))


def lying_definitions(rig, folder):
    """The names are those of calls, but dtypes, sizes and inputs are not."""
    dataset = dataset_in(folder)
    for index, path in enumerate(sorted((dataset / "definitions").rglob("*.json"))):
        definition = json.loads(path.read_text(encoding="utf-8"))
        inputs = definition["inputs"]
        first = next(iter(inputs.values()))
        if index % 3 == 0:
            first["dtype"] = "float16"
        elif index % 3 == 1:
            inputs["nobody_has_this"] = first
            definition["reference"] = f"def run({', '.join(inputs)}):\n    pass\n"
        else:
            first["shape"] = first["shape"][:-1]
        path.write_text(json.dumps(definition), encoding="utf-8")
    tracing, end = enabled(rig, dataset, apply=False)
    rig.run()
    end()
    left = [path for path in (dataset / "workloads").rglob("*.jsonl") if path.stat().st_size]
    return not left and (tracing.stats()["rejected"] or tracing.stats()["problems"])


# --------------------------------------------------------------------------------------- calls


def wrong_shapes(rig, folder):
    """Calls that the original refuses raise what they did before, and others go on."""
    import torch

    def cases():
        engine = rig.make["sglang"]()
        engine.step()
        pages, wrapper = engine.pages, engine.decode_wrapper
        half = engine.q[..., :32]
        from flashinfer.norm import fused_add_rmsnorm, rmsnorm

        return [
            lambda: rmsnorm(engine.x, engine.weight[:7]),
            lambda: rmsnorm(engine.x),
            lambda: rmsnorm(None, None),
            lambda: fused_add_rmsnorm(engine.x.clone(), engine.residual[:1, :5], engine.weight),
            lambda: wrapper.run(half, pages),
            lambda: wrapper.run(engine.q, pages, out=torch.empty(3)),
            lambda: wrapper.run(engine.q),
            lambda: wrapper.run(engine.q, pages, no_such_option=1),
            lambda: wrapper.run("text", pages),
            lambda: engine.mla_wrapper.run(engine.mla_q),
            lambda: engine.paged.run(engine.q_extend, pages[0]),
        ]

    expected = [rig.raises(case) for case in cases()]
    _, end = enabled(rig, dataset_in(folder))
    for case, wanted in zip(cases(), expected, strict=True):
        if wanted is not None:
            rig.same_error(case, wanted)
    rig.run(2)
    end()
    return sum(each is not None for each in expected)


def kernels_raise(rig, folder):
    """What a kernel raises reaches the engine as that very object."""
    from flashinfer.norm import rmsnorm

    engine = rig.make["sglang"]()
    _, end = enabled(rig, dataset_in(folder), apply=False)
    error = Kernel("out of memory, say")

    def fails(*args, **kwargs):
        raise error

    import flashinfer

    kernels = flashinfer.norm.get_norm_module()
    working, kernels.rmsnorm = kernels.rmsnorm, fails
    struck = 0
    for _ in range(20):
        try:
            rmsnorm(engine.x, engine.weight)
            rig.wrong.append("a call that had to raise did not")
        except Kernel as caught:
            struck += 1
            if caught is not error:
                rig.ours.append("another object was raised")
        rig.calls += 1
    kernels.rmsnorm = working
    rig.run(1)
    end()
    return struck


def captures(rig, folder):
    """Everything runs while a graph is being captured, from the first call on."""
    _, end = enabled(rig, dataset_in(folder))
    with rig.capture():
        rig.run(2)
    rig.run(1)
    end()
    return bool(rig.solutions)


# ----------------------------------------------------------------------- threads and processes


def in_threads(jobs):
    threads = [threading.Thread(target=job) for job in jobs]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def threads(rig, folder):
    rig.may_capture = False
    _, end = enabled(rig, dataset_in(folder))
    in_threads([rig.run] * 6)
    end()
    return bool(rig.solutions)


def storm_of_enabling(rig, folder):
    """Some threads call; another enables and disables apply, and tracing, all the time."""
    import flashinfer_bench as fib

    rig.may_capture = False
    dataset, done = dataset_in(folder), threading.Event()

    def toggle():
        for _ in range(ROUNDS):
            fib.enable_tracing(dataset)
            fib.enable_apply(rig.mapping)
            time.sleep(0.02)
            fib.disable_tracing()
            time.sleep(0.02)
            fib.disable_apply()

    def toggle_to_the_end():
        problem = rig.raises(toggle)
        done.set()
        rig.ours += [f"enabling: {problem}"] if problem else []

    def call():
        while not done.is_set():
            rig.run(1)

    in_threads([toggle_to_the_end, *[call] * 4])
    return bool(rig.solutions) and any((dataset / "workloads").rglob("*.jsonl"))


def _work(rig, results):
    rig.calls, rig.ours, rig.wrong = 0, [], []
    rig.run(2)
    results.put((rig.calls, rig.ours, rig.wrong))


def forked_workers(rig, folder):
    """Workers are forked in the middle of everything, and some again from these."""
    context = multiprocessing.get_context("fork")
    dataset = dataset_in(folder)
    _, end = enabled(rig, dataset)
    rig.run(1)
    results = context.SimpleQueue()
    workers = [context.Process(target=_work, args=(rig, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    rig.run(1)
    for _ in workers:
        calls, ours, wrong = results.get()
        rig.calls, rig.ours, rig.wrong = rig.calls + calls, rig.ours + ours, rig.wrong + wrong
    for worker in workers:
        worker.join()
        if worker.exitcode:
            rig.ours.append(f"a worker ended with {worker.exitcode}")
    end()
    return len(workers)


def bare_fork(rig, folder):
    """A child of `os.fork` that ends by `os._exit`, while threads of the parent are calling."""
    rig.may_capture = False
    _, end = enabled(rig, dataset_in(folder))
    caller = threading.Thread(target=rig.run, args=(4,))
    caller.start()
    for _ in range(3):
        child = os.fork()
        if child == 0:
            rig.ours, rig.wrong = [], []
            rig.run(1, ["vllm"])
            os._exit(1 if rig.ours or rig.wrong else 0)
        rig.calls += 5
        if status := os.waitpid(child, 0)[1]:
            rig.ours.append(f"a child ended with {status}")
    caller.join()
    end()
    return True


def shutdown(rig, folder):
    """Everything stays enabled while the interpreter ends, and engines go on calling.

    A thread calls until the very last function at exit has it stop; others call before and after
    what is recorded is written. Later nobody can: torch itself does not survive that.
    """
    rig.may_capture = False
    ending = threading.Event()
    engine = rig.make["vllm"]()

    def call():
        while not ending.is_set():
            rig.step("vllm", engine)

    thread = threading.Thread(target=call, daemon=True)

    def last():
        # A daemon thread that is in torch when the interpreter is gone ends the process with a
        # signal, enabled or not.
        ending.set()
        thread.join()
        tell(rig.summary(), "left behind", bool(rig.solutions))

    atexit.register(last)
    atexit.register(rig.run, 1)
    enabled(rig, dataset_in(folder))
    atexit.register(rig.run, 1)
    thread.start()
    rig.run(1)
    weakref.finalize(engine, rig.run, 1)  # is called at exit, as the engine stays that long


def tell(said, without, struck):
    """Print what came of a fault; `without` is what cannot be asked for, if anything."""
    if without:
        said[without] = []
    print(json.dumps({**said, "struck": int(bool(struck))}), flush=True)


def main(fault, folder):
    from cpu import cpu_flashinfer

    context = cpu_flashinfer("norm", "decode", "prefill", "mla")
    rig = Rig(context.__enter__())
    kept.append(context)
    struck = globals()[fault](rig, Path(folder))
    if fault != "shutdown":  # that one tells at the end, when everything is still enabled
        tell(rig.summary(), "", struck)
        context.__exit__(None, None, None)


if __name__ == "__main__":
    main(*sys.argv[1:])
