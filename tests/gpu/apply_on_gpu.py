"""Dispatching calls on a GPU: what it costs, CUDA graphs, devices, streams, compiled callers.

Prints one JSON object: for each check whether it went well and its seconds, and what a call costs
in nanoseconds over calling the solution directly. Every check is made with each way to recognise
calls; those of `apply_dataset_on_gpu`, with CUDA solutions that are built for it, once. Exit code 1
if a check failed, 4 if there is no GPU. It takes about a minute. Which of two GPUs gets a call is
checked where there are two.
"""

from __future__ import annotations

import gc
import importlib.util
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apply_dataset_on_gpu as of_dataset
import torch
from common import definition, failed, require_gpu, run_checks, told

from flashinfer_bench.apply.config import ApplyConfig
from flashinfer_bench.apply.dispatch import Dispatcher, Target, recognition
from flashinfer_bench.apply.dispatch import dispatcher as dispatcher_module
from flashinfer_bench.apply.dispatch import target as target_module
from flashinfer_bench.apply.dispatch.recognition import by_torch, tensor_guards
from flashinfer_bench.apply.keys import AxesOnlyKeyBuilder
from flashinfer_bench.data import Definition

if TYPE_CHECKING:
    from collections.abc import Callable

MATRIX = "n,k float32"
DEFINITION = Definition.model_validate(
    definition(
        "add",
        "op",
        {"n": None, "k": 64},
        {"x": MATRIX, "y": MATRIX},
        {"z": MATRIX},
        "def run(x, y):\n    return x + y\n",
    )
)
TRITON = """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, z, count, extra, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    tl.store(z + at, tl.load(x + at, mask) + tl.load(y + at, mask) + extra, mask)

def run(x, y, z):
    kernel[(triton.cdiv(x.numel(), 256),)](x, y, z, x.numel(), 1000.0, BLOCK=256)
"""


class Resolver:
    """Gives one target, and counts how often it is asked."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.asked = 0

    def resolve(self, key: Any) -> Target:
        self.asked += 1
        return self.target


def dispatcher(function: Callable[..., Any], **options: Any) -> Dispatcher:
    """Return a dispatcher for the first GPU; solutions add 1000 or more to tell them apart."""
    style = options.pop("destination_passing", False)
    target = Target(function, DEFINITION, "solution", style)
    return Dispatcher(
        DEFINITION,
        Resolver(target),
        ApplyConfig(**options),
        key_builder=AxesOnlyKeyBuilder(DEFINITION),
        device="cuda:0",
    )


def original(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor | None = None) -> Any:
    return torch.add(x, y, out=z)


def thousand(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y + 1000


def thousand_into(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> None:
    torch.add(x, y, out=z)
    z.add_(1000)


def ones(n: int = 4, device: str = "cuda:0") -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(n, 64, device=device), torch.ones(n, 64, device=device)


def is_all(tensor: torch.Tensor, value: float) -> bool:
    return bool((tensor == value).all())


# ------------------------------------------------------------------------------------ checks


def check_calls() -> None:
    """Both conventions and both styles, and what must not be substituted."""
    x, y = ones()
    for style, function in ((False, thousand), (True, thousand_into)):
        made = dispatcher(function, destination_passing=style)
        for _ in range(3):
            assert is_all(made.call((x, y), None, original), 1002)
            z = torch.empty_like(x)
            made.call((x, y, z), None, original)
            assert is_all(z, 1002)
        for bad in ((x.cpu(), y.cpu()), (x, y.double()), (x.t().contiguous().t(), y), (x, y[:2])):
            assert made.call(bad, None, lambda *args: "original") == "original"
        assert made.call((x, y, x), None, lambda *args: "original") == "original"
        assert made.stats.hits == 6, made.stats


def check_modes() -> None:
    """Inference mode, no_grad, and weights that could be trained."""
    made = dispatcher(thousand)
    x, weight = ones()[0], torch.nn.Parameter(ones()[1])
    for _ in range(3):
        with torch.inference_mode():
            assert is_all(made.call((x + 0, weight), None, original), 1002)
        with torch.no_grad():
            assert is_all(made.call((x, weight), None, original), 1002)
        assert is_all(made.call((x, weight), None, original), 2)
        with torch.autocast("cuda", torch.float16):
            assert is_all(made.call((x, x), None, original), 2)
    assert made.stats.misses == {"grad": 3, "mode": 3}, made.stats


def capture(made: Dispatcher, x: Any, y: Any, z: Any) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made.call((x, y, z), None, original)
        z.add_(made.call((x, y), None, original))
    return graph


def replay(graph: torch.cuda.CUDAGraph, z: torch.Tensor) -> torch.Tensor:
    z.zero_()
    graph.replay()
    torch.cuda.synchronize()
    return z


def check_graph_keeps_its_kernel() -> None:
    """A captured graph replays the solution, also when the runtime has gone on to another one."""
    x, y = ones()
    z = torch.empty_like(x)
    made = dispatcher(thousand)
    made.call((x, y), None, original)  # resolved: that is enough for either convention
    graph = capture(made, x, y, z)
    assert is_all(replay(graph, z), 2004)
    other = dispatcher(lambda x, y: x - y)
    del made
    gc.collect()
    for _ in range(3):
        assert is_all(other.call((x, y), None, original), 0)
        assert is_all(replay(graph, z), 2004)
    x.fill_(5)
    assert is_all(replay(graph, z), 2012)


def check_unresolved_in_capture() -> None:
    """What is first seen during a capture goes to the original, and is resolved afterwards."""
    x, y = ones()
    z = torch.empty_like(x)
    made = dispatcher(thousand)
    resolver: Any = made._resolver
    graph = capture(made, x, y, z)
    assert (resolver.asked, made.stats.misses) == (0, {"capture": 2}), made.stats
    assert is_all(replay(graph, z), 4)
    assert is_all(made.call((x, y), None, original), 1002)
    assert is_all(replay(graph, z), 4)


def check_no_comparison_in_capture() -> None:
    """Entries that are still compared go to the original; a comparison would wait for the GPU."""
    x, y = ones()
    z = torch.empty_like(x)
    made = dispatcher(lambda x, y: x + y, shadow_calls=2, shadow_share=1.0)
    made.call((x, y), None, original)
    assert is_all(replay(capture(made, x, y, z), z), 4)
    assert made.stats.misses == {"capture": 2}, made.stats
    made.call((x, y), None, original)
    before = made.stats.fallbacks
    assert is_all(replay(capture(made, x, y, z), z), 4)
    assert made.stats.fallbacks == before, made.stats
    wrong = dispatcher(thousand, shadow_calls=1)
    assert is_all(wrong.call((x, y), None, original), 2)
    assert [entry.state for entry in wrong.entries()] == ["out"]


def check_graph_keeps_triton_kernel() -> str | None:
    """The same with a kernel whose module nobody else holds."""
    if importlib.util.find_spec("triton") is None:
        return "skipped: no Triton"

    class Owner:
        _explain = None

    x, y = ones()
    z = torch.empty_like(x)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fib_gpu_kernel.py"
        path.write_text(TRITON)
        spec = importlib.util.spec_from_file_location("fib_gpu_kernel", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        owner: Any = Owner()
        target = Target(
            module.run, DEFINITION, solution="triton", destination_passing=True, owner=owner
        )
        made = dispatcher(thousand)
        made._resolver = Resolver(target)
        for _ in range(3):
            made.call((x, y, z), None, original)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made.call((x, y, z), None, original)
        assert any(kept is owner for _, kept in target_module.kept.values())
        del made, target, module, spec, owner
    gc.collect()
    torch.cuda.empty_cache()
    for _ in range(3):
        assert is_all(replay(graph, z), 1002)
    return None


def check_side_streams() -> None:
    """Calls on a stream of the caller's run there, in order with its other work."""
    made = dispatcher(thousand_into, destination_passing=True)
    stream = torch.cuda.Stream()
    large = torch.ones(4096, 4096, device="cuda:0")
    for _ in range(20):
        x, y = ones()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                large @ large  # so that a launch elsewhere would overtake
            x.fill_(7)
            z = made.call((x, y), None, original)
            copy = z + 1
        torch.cuda.current_stream().wait_stream(stream)
        assert is_all(copy, 1009)
    assert made.stats.hits == 20, made.stats


def check_compiled_callers(backend: str = "eager") -> None:
    """torch.compile breaks its graph at the call, and compiles what is around it."""
    made = dispatcher(thousand)
    x, y = ones()
    compiled = torch.compile(
        lambda x, y: made.call((x * 2, y), None, original) * 3, backend=backend
    )
    for _ in range(3):
        assert is_all(compiled(x, y), 3009)
    assert made.stats.hits == 3, made.stats


def check_two_devices() -> str | None:
    """A call runs where its tensors are, whichever device is current, if hardware is the same."""
    if torch.cuda.device_count() < 2:
        return "skipped: one GPU"
    same = torch.cuda.get_device_name(0) == torch.cuda.get_device_name(1)
    seen: list[int] = []

    def here(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(torch.cuda.current_device())
        return torch.full(x.shape, 1002.0, device="cuda")

    for function, style in ((here, False), (thousand_into, True)):
        made = dispatcher(function, destination_passing=style)
        for current in (0, 1, 0, 1):
            with torch.cuda.device(current):
                for index in (0, 1, 1, 0):
                    x, y = ones(device=f"cuda:{index}")
                    result = made.call((x, y), None, original)
                    assert result.device == x.device
                    assert is_all(result, 1002 if same or not index else 2)
                    assert torch.cuda.current_device() == current
    x, _ = ones(device="cuda:0")
    _, y = ones(device="cuda:1")
    assert made.call((x, y), None, lambda *args: "original") == "original"
    assert set(seen) == ({0, 1} if same else {0})
    return None


CHECKS = {name[6:]: value for name, value in list(globals().items()) if name.startswith("check_")}
# These take seconds, and hang on nothing that differs between the ways to recognise calls.
ONCE = {**of_dataset.CHECKS, "inductor": lambda: check_compiled_callers("inductor")}


# ------------------------------------------------------------------------------------- costs


def nothing(*args: Any) -> None:
    return None


def loop_ns(function: Callable[..., Any], args: tuple[Any, ...], calls: int = 5000) -> float:
    began = time.perf_counter_ns()
    for _ in range(calls):
        function(*args)
    return (time.perf_counter_ns() - began) / calls


def over(outer: Any, inner: Any) -> float:
    """Return the median of nanoseconds that one call takes more than the other."""
    loop_ns(*outer, 500)
    return round(statistics.median(loop_ns(*outer) - loop_ns(*inner) for _ in range(15)))


def costs() -> dict[str, float]:
    """Return what calls cost whose solutions launch nothing."""
    x, y = ones()
    z = torch.empty_like(x)
    value, into = (lambda x, y: z), (lambda x, y, z: None)
    hit, dps = dispatcher(value), dispatcher(into, destination_passing=True)
    missed = dispatcher(value)
    missed._resolver = type("Nobody", (), {"resolve": lambda self, key: None})()
    return {
        "hit": over((hit.call, ((x, y), None, nothing)), (value, (x, y))),
        "destination-passing": over((dps.call, ((x, y, z), None, nothing)), (into, (x, y, z))),
        "allocating": over((dps.call, ((x, y), None, nothing)), (into, (x, y, z))),
        "miss": over((missed.call, ((x, y), None, nothing)), (nothing, (x, y))),
    }


# -------------------------------------------------------------------------------------- main


def note_costs(place: dict[str, float]) -> None:
    place.update(costs())


def recognise_by(by: Any) -> None:
    dispatcher_module.recognition = lambda: by  # type: ignore[attr-defined]


def ways() -> dict[str, Any]:
    """Return the ways to recognise calls that there are here."""
    found: dict[str, Any] = {"python": None}
    checker = tensor_guards()
    if checker is not None:
        found["torch"] = by_torch(checker)
    try:
        recognition.build_helper()
    except Exception as error:  # noqa: BLE001
        print(f"no helper: {error}", file=sys.stderr)
    helper = recognition.by_helper()
    if helper is not None:
        found["helper"] = helper
    return found


def main() -> int:
    require_gpu()
    began = time.monotonic()
    checks: dict[str, dict[str, Any]] = {}
    ns: dict[str, dict[str, float]] = {}
    for name, by in ways().items():
        recognise_by(by)
        ns[name] = {}
        checks[name] = run_checks({**CHECKS, "costs": partial(note_costs, ns[name])})
    # With the quickest way that there is: the last one.
    checks["once"] = run_checks(ONCE)
    bad = {name: wrong for name, each in checks.items() if (wrong := failed(each))}
    report = {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "seconds": round(time.monotonic() - began, 1),
        "failed": bad,
        "checks": checks,
        "ns": ns,
    }
    return told(report, bad or "torch" not in checks)


if __name__ == "__main__":
    sys.exit(main())
