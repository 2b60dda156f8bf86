"""What core itself provides, registered the way any plugin registers.

The records name code of higher layers by string, so this layer still imports none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.plugins.hookspecs import hookimpl
from flashinfer_bench.plugins.records import (
    EvaluatorSpec,
    ExecutorSpec,
    KeyBuilderSpec,
    TimerSpec,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_TIMING = "flashinfer_bench.bench.timing"
_EXECUTORS = "flashinfer_bench.bench.executors"
_EVALUATORS = "flashinfer_bench.bench.evaluators"
_KEYS = "flashinfer_bench.apply.key_builders"
# Of cudaEventElapsedTime, as the runtime's manual has it.
_EVENT_RESOLUTION_MS = 5e-4


@hookimpl
def fib_register_timers() -> Iterable[TimerSpec]:
    """Register a wall clock for the CPU, and event pairs, graphs and do_bench for CUDA devices.

    The latter two are for trusted solutions, and are taken only where they are asked for.
    """
    yield TimerSpec(
        name="cpu",
        devices=("cpu",),
        factory=f"{_TIMING}.wall:WallClockTimer",
        resolution_ms=1e-6,
        overhead="two readings of the clock, measured in each process, are taken out",
        summary="Monotonic wall clock around each call",
    )
    yield TimerSpec(
        name="cuda_event",
        devices=("cuda",),
        factory=f"{_TIMING}.cuda_event:CudaEventTimer",
        probe=f"{_TIMING}.probes:cuda_event",
        resolution_ms=_EVENT_RESOLUTION_MS,
        overhead="what a pair of events costs, measured at the first call, is taken out (at most "
        "3 us); 1 to 5 us stay in where the device's clock ticks too slowly to tell",
        summary="A pair of CUDA events around each call",
    )
    yield from _for_trusted_solutions()


def _for_trusted_solutions() -> Iterable[TimerSpec]:
    yield TimerSpec(
        name="cuda_graph",
        devices=("cuda",),
        factory=f"{_TIMING}.cuda_graph:CudaGraphTimer",
        probe=f"{_TIMING}.probes:cuda_event",
        priority=20,
        resolution_ms=_EVENT_RESOLUTION_MS,
        overhead="as cuda_event; the start of a graph stays in",
        trusting=True,
        summary="Captures each call as a CUDA graph, and times its replay",
    )
    yield TimerSpec(
        name="do_bench",
        devices=("cuda",),
        factory=f"{_TIMING}.do_bench:DoBenchTimer",
        probe=f"{_TIMING}.probes:do_bench",
        priority=10,
        resolution_ms=_EVENT_RESOLUTION_MS,
        overhead="launches by the host and gaps between them stay in",
        repeats=True,
        caches=("cold",),
        summary="Triton's do_bench: the median of many calls with the same inputs",
    )


@hookimpl
def fib_register_key_builders() -> Iterable[KeyBuilderSpec]:
    """Register keys for the op types whose speed is known to follow from the same things.

    Their priority is that of fallbacks: a plugin's key builder goes before them.
    """
    yield KeyBuilderSpec(
        name="gemm",
        op_types=("gemm",),
        factory=f"{_KEYS}:GEMMKeyBuilder",
        priority=0,
        summary="The variable axes of a matrix product",
    )
    yield KeyBuilderSpec(
        name="gqa",
        op_types=("gqa", "gqa_paged", "gqa_ragged"),
        factory=f"{_KEYS}:GQAKeyBuilder",
        priority=0,
        summary="The variable axes of attention, and its integer and boolean scalars",
    )
    yield KeyBuilderSpec(
        name="mla",
        op_types=("mla", "mla_paged", "mla_ragged"),
        factory=f"{_KEYS}:MLAKeyBuilder",
        priority=0,
        summary="The variable axes of latent attention, and its integer and boolean scalars",
    )


@hookimpl
def fib_register_evaluators() -> Iterable[EvaluatorSpec]:
    """Register the comparison for most definitions, and evaluators for those that need another.

    Their priorities are below the usual one, so that a plugin's evaluator goes before them.
    """
    yield EvaluatorSpec(
        name="default",
        factory=f"{_EVALUATORS}.default:DefaultEvaluator",
        priority=0,
        summary="Compares outputs element by element within a tolerance",
    )
    yield EvaluatorSpec(
        name="lowbit",
        op_types=("moe",),
        dtypes=("float8*", "float4*", "int8", "int4*"),
        factory=f"{_EVALUATORS}.lowbit:LowBitEvaluator",
        priority=30,
        summary="Bounds the errors of elements that need not match, too",
    )
    yield EvaluatorSpec(
        name="sampling",
        op_types=("sampling",),
        inputs=("*probs*", "*logits*"),
        outputs=("samples*",),
        factory=f"{_EVALUATORS}.sampling:SamplingEvaluator",
        priority=40,
        summary="Holds samples of many calls against the distribution asked for",
    )
    yield from _sparse_attention()


def _sparse_attention() -> Iterable[EvaluatorSpec]:
    kinds = ("dsa_*", "nsa_*")
    yield EvaluatorSpec(
        name="dsa_sparse_attention",
        op_types=kinds,
        inputs=("sparse_indices",),
        factory=f"{_EVALUATORS}.dsa_sparse_attention:DsaSparseAttentionEvaluator",
        priority=40,
        summary="Compares every output, and finds tokens that attention leaves out",
    )
    yield EvaluatorSpec(
        name="dsa_topk_indexer",
        op_types=kinds,
        outputs=("topk_indices",),
        factory=f"{_EVALUATORS}.dsa_topk_indexer:DsaTopkIndexerEvaluator",
        priority=40,
        summary="Checks by their scores that the right tokens are selected, in any order",
    )


@hookimpl
def fib_register_executors() -> Iterable[ExecutorSpec]:
    """Register a fork server, and plain subprocesses for where there is no fork."""
    yield ExecutorSpec(
        name="fork",
        devices=("cpu", "cuda"),
        factory=f"{_EXECUTORS}.fork:ForkExecutor",
        probe=f"{_EXECUTORS}.probes:fork",
        priority=60,
        summary="Forks candidates from a process that has torch loaded",
    )
    yield ExecutorSpec(
        name="spawn",
        devices=("cpu", "cuda"),
        factory=f"{_EXECUTORS}.spawn:SpawnExecutor",
        priority=40,
        summary="Starts each candidate as a process of its own",
    )
