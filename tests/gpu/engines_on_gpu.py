"""The real FlashInfer on a GPU: traced, substituted, restored; graphs; and what all that costs.

Prints one JSON object: for each check whether it went well, its seconds and figures. Exit code 1 if
a check failed, 4 if there is no GPU or no FlashInfer. Needs core, fib-builder-python,
fib-builder-triton and fib-adapters-flashinfer, installed or in `PYTHONPATH`, and a compiler: the
first run builds FlashInfer's kernels, a minute or two. `FLASHINFER_WORKSPACE_BASE` says where these
are kept.
"""

from __future__ import annotations

import json
import logging
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from common import FIB, definition, failed, require_gpu, run_checks, solution, told

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE = "cuda:0"
HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 4096, 32, 8, 128
NORM, ADD_NORM = f"rmsnorm_h{HIDDEN}", f"fused_add_rmsnorm_h{HIDDEN}"
CKV, KPE, MLA_HEADS = 512, 64, 16
MLA = f"mla_paged_decode_h{MLA_HEADS}_ckv{CKV}_kpe{KPE}_ps1"
BF16 = {"dtype": torch.bfloat16, "device": DEVICE}
TOLERANCE = {"atol": 2e-2, "rtol": 2e-2}

# One process for each, so that kernels are built at the same time.
BUILDS = {
    "norm": "flashinfer.rmsnorm(x, w); flashinfer.fused_add_rmsnorm(x, x.clone(), w)",
    "decode": "decode(16); decode(1)",
    "prefill": "prefill()",
    "mla": "mla()",
    "silu": "flashinfer.silu_and_mul(x)",
}
BUILD = """
import sys
sys.path.insert(0, {folder!r})
from engines_on_gpu import *
import flashinfer
x, w = torch.randn(4, HIDDEN, **BF16), torch.randn(HIDDEN, **BF16)
decode = lambda page_size: Decode(page_size).run()
prefill = lambda: Prefill().run()
mla = lambda: Mla().run()
{code}
torch.cuda.synchronize()
"""

NORM_TRITON = """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, w, out, H: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * H + at, mask=at < H, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / H + 1e-6)
    weight = tl.load(w + at, mask=at < H, other=0.0).to(tl.float32)
    tl.store(out + row * H + at, (value * scale * weight).to(tl.bfloat16), mask=at < H)

def run(hidden_states, weight, output):
    rows, width = hidden_states.shape
    block = triton.next_power_of_2(width)
    kernel[(rows,)](hidden_states, weight, output, width, BLOCK=block, num_warps=8)
"""
NORM_REFERENCE = """
import torch

def run(hidden_states, weight):
    x = hidden_states.float()
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (y * weight.float()).to(hidden_states.dtype)
"""
ADD_NORM_REFERENCE = """
import torch

EPS = 1e-6

def run(hidden_states, residual, weight):
    x = hidden_states.float() + residual.float()
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
    return (y * weight.float()).to(hidden_states.dtype)
"""
# Without a look at any value on the host: it can be captured. Sequences are padded to the number
# of pages of the table.
DECODE = """
import math
import torch

def run(q, k_cache, v_cache, kv_indptr, kv_indices, {last}sm_scale):
    batch, heads, dim = q.shape
    pages, size = k_cache.shape[0], k_cache.shape[1]
    counts = kv_indptr[1:] - kv_indptr[:-1]
    points = torch.arange(kv_indices.shape[0], device=q.device)
    table = (kv_indptr[:-1, None] + points).clamp(max=kv_indices.shape[0] - 1)
    used = kv_indices[table].long().clamp(0, pages - 1)
    at = torch.arange(kv_indices.shape[0] * size, device=q.device)
    lengths = {length}
    k = k_cache[used].flatten(1, 2).float()
    v = v_cache[used].flatten(1, 2).float()
    group = heads // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    logits = torch.einsum("bhd,bthd->bht", q.float(), k) * sm_scale
    logits = logits.masked_fill((at >= lengths[:, None])[:, None], -math.inf)
    lse = torch.logsumexp(logits, -1)
    weights = torch.where(lse[..., None] == -math.inf, 0.0, (logits - lse[..., None]).exp())
    v = v.where((at < lengths[:, None])[..., None, None], 0)
    out = torch.einsum("bht,bthd->bhd", weights, v)
    return out.to(q.dtype), lse / math.log(2)
"""
MLA_DECODE = """
import math
import torch

def run(q_nope, q_pe, ckv_cache, kpe_cache, kv_indptr, kv_indices, sm_scale):
    out = torch.zeros_like(q_nope)
    lse = torch.full(q_nope.shape[:2], -math.inf, dtype=torch.float32, device=q_nope.device)
    for i, (start, end) in enumerate(zip(kv_indptr.tolist(), kv_indptr.tolist()[1:])):
        pages = kv_indices[start:end].long()
        ckv, kpe = ckv_cache[pages, 0].float(), kpe_cache[pages, 0].float()
        logits = (q_nope[i].float() @ ckv.T + q_pe[i].float() @ kpe.T) * sm_scale
        lse[i] = torch.logsumexp(logits, -1) / math.log(2)
        out[i] = (logits.softmax(-1) @ ckv).to(q_nope.dtype)
    return out, lse
"""


def decode_name(page_size: int) -> str:
    return f"gqa_paged_decode_h{HEADS}_kv{KV_HEADS}_d{HEAD_DIM}_ps{page_size}"


# --------------------------------------------------------------------------------------- calls


class Paged:
    """Sequences, and the pages of their tokens."""

    lengths = (5, 77, 1, 130)

    def __init__(self, page_size: int) -> None:
        torch.manual_seed(page_size)
        self.page_size = page_size
        counts = [math.ceil(length / page_size) for length in self.lengths]
        starts = [0, *torch.tensor(counts).cumsum(0).tolist()]
        self.indptr = torch.tensor(starts, dtype=torch.int32)
        self.pages = int(self.indptr[-1])
        self.indices = torch.randperm(self.pages, dtype=torch.int32).to(DEVICE)
        last = [(length - 1) % page_size + 1 for length in self.lengths]
        self.last = torch.tensor(last, dtype=torch.int32)


class Decode(Paged):
    """A decode as engines make it: indptr on the host, keys and values in one 5-D cache.

    Or packed into the last dimension of a 4-D one, of which each call makes two views.
    """

    def __init__(self, page_size: int, layout: str = "NHD", *, packed: bool = False) -> None:
        import flashinfer

        super().__init__(page_size)
        self.q = torch.randn(len(self.lengths), HEADS, HEAD_DIM, **BF16)
        inner = (page_size, KV_HEADS) if layout == "NHD" else (KV_HEADS, page_size)
        self.kv = torch.randn(self.pages, 2, *inner, HEAD_DIM, **BF16)
        self.packed = torch.cat(self.kv.unbind(1), dim=-1) if packed else None
        workspace = torch.empty(128 << 20, dtype=torch.uint8, device=DEVICE)
        self.wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, layout)
        self.name = decode_name(page_size)

    def plan(self, method: str = "plan") -> None:
        getattr(self.wrapper, method)(
            self.indptr, self.indices, self.last, HEADS, KV_HEADS, HEAD_DIM, self.page_size,
            q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16,
        )  # fmt: skip

    def run(self, **options: Any) -> Any:
        self.plan()
        cache = self.kv if self.packed is None else self.packed.split(HEAD_DIM, dim=-1)
        return self.wrapper.run(self.q, cache, **options)


class Prefill(Paged):
    """A causal paged prefill of the last tokens of each sequence."""

    name = f"gqa_paged_prefill_causal_h{HEADS}_kv{KV_HEADS}_d{HEAD_DIM}_ps1"

    def __init__(self) -> None:
        import flashinfer

        super().__init__(1)
        news = [1, 20, 1, 7]
        self.qo_indptr = torch.tensor([0, 1, 21, 22, 29], dtype=torch.int32)
        self.q = torch.randn(sum(news), HEADS, HEAD_DIM, **BF16)
        self.kv = tuple(torch.randn(self.pages, 1, KV_HEADS, HEAD_DIM, **BF16) for _ in range(2))
        workspace = torch.empty(128 << 20, dtype=torch.uint8, device=DEVICE)
        self.wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace)

    def run(self) -> Any:
        self.wrapper.plan(
            self.qo_indptr, self.indptr, self.indices, self.last, HEADS, KV_HEADS, HEAD_DIM, 1,
            causal=True, q_data_type=torch.bfloat16,
        )  # fmt: skip
        return self.wrapper.run(self.q, self.kv, return_lse=True)


class Mla(Paged):
    """An MLA decode, planned as engines do: not causal, one token of each sequence."""

    name = MLA

    def __init__(self) -> None:
        import flashinfer

        super().__init__(1)
        batch = len(self.lengths)
        self.q = torch.randn(batch, MLA_HEADS, CKV + KPE, **BF16)
        self.kv = torch.randn(self.pages, 1, CKV + KPE, **BF16)
        workspace = torch.empty(128 << 20, dtype=torch.uint8, device=DEVICE)
        self.wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace)
        self.qo_indptr = torch.arange(batch + 1, dtype=torch.int32)

    def run(self) -> Any:
        scale = 1 / math.sqrt(128 + KPE)
        lengths = torch.tensor(self.lengths, dtype=torch.int32)
        self.wrapper.plan(
            self.qo_indptr, self.indptr, self.indices, lengths, MLA_HEADS, CKV, KPE, 1, False,
            scale, torch.bfloat16, torch.bfloat16,
        )  # fmt: skip
        parts = (self.q[..., :CKV], self.q[..., CKV:], self.kv[..., :CKV], self.kv[..., CKV:])
        return self.wrapper.run(*parts)


# ------------------------------------------------------------------------------------- dataset


def norms() -> list[dict[str, Any]]:
    axes = {"batch_size": None, "hidden_size": HIDDEN}
    rows, weight = "batch_size,hidden_size bfloat16", "hidden_size bfloat16"
    one = {"hidden_states": rows, "weight": weight}
    two = {"hidden_states": rows, "residual": rows, "weight": weight}
    out = {"output": rows}
    return [
        definition(NORM, "rmsnorm", axes, one, out, NORM_REFERENCE),
        definition(ADD_NORM, "rmsnorm", axes, two, out, ADD_NORM_REFERENCE),
    ]


def decode_source(page_size: int) -> str:
    if page_size == 1:
        return DECODE.format(last="", length="counts")
    length = "torch.where(counts > 0, (counts - 1) * size + kv_last_page_len, 0)"
    return DECODE.format(last="kv_last_page_len, ", length=length)


PAGES = {"num_pages": None, "page_size": 1, "len_indptr": None, "num_kv_indices": None}
INDICES = {"kv_indptr": "len_indptr int32", "kv_indices": "num_kv_indices int32"}
CONSTRAINTS = ["len_indptr == batch_size + 1", "num_kv_indices == kv_indptr[-1].item()"]


def decode_definition(page_size: int) -> dict[str, Any]:
    axes = {"batch_size": None, "num_qo_heads": HEADS, "num_kv_heads": KV_HEADS}
    axes |= {"head_dim": HEAD_DIM, **PAGES, "page_size": page_size}
    query = "batch_size,num_qo_heads,head_dim bfloat16"
    caches = "num_pages,page_size,num_kv_heads,head_dim bfloat16"
    last = {} if page_size == 1 else {"kv_last_page_len": "batch_size int32"}
    inputs = {"q": query, "k_cache": caches, "v_cache": caches, **INDICES, **last}
    return definition(
        decode_name(page_size),
        "gqa_paged",
        axes,
        {**inputs, "sm_scale": " float32"},
        {"output": query, "lse": "batch_size,num_qo_heads float32"},
        decode_source(page_size),
        constraints=CONSTRAINTS,
    )


def mla_definition() -> dict[str, Any]:
    axes = {"batch_size": None, "num_qo_heads": MLA_HEADS, "head_dim_ckv": CKV}
    query = "batch_size,num_qo_heads,head_dim_ckv bfloat16"
    inputs = {
        "q_nope": query,
        "q_pe": "batch_size,num_qo_heads,head_dim_kpe bfloat16",
        "ckv_cache": "num_pages,page_size,head_dim_ckv bfloat16",
        "kpe_cache": "num_pages,page_size,head_dim_kpe bfloat16",
    }
    return definition(
        MLA,
        "mla_paged",
        {**axes, "head_dim_kpe": KPE, **PAGES},
        {**inputs, **INDICES, "sm_scale": " float32"},
        {"output": query, "lse": "batch_size,num_qo_heads float32"},
        MLA_DECODE,
        constraints=CONSTRAINTS,
    )


def named(name: str, language: str, source: str, *, into: bool = False) -> dict[str, Any]:
    return solution(f"{language}_{name}", name, source, language=language, into=into)


@cache
def dataset() -> Path:
    """Write definitions and one solution for each; workloads and traces are to come."""
    root = Path(tempfile.mkdtemp(prefix="fib-engines-gpu-"))
    os.environ.setdefault("FIB_CACHE_PATH", str(root / "cache"))
    definitions = [*norms(), decode_definition(1), decode_definition(16), mla_definition()]
    solutions = [
        named(NORM, "triton", NORM_TRITON, into=True),
        named(ADD_NORM, "python", ADD_NORM_REFERENCE),
        named(decode_name(1), "python", decode_source(1)),
        named(decode_name(16), "python", decode_source(16)),
        named(MLA, "python", MLA_DECODE),
    ]
    for kind, items in (("definitions", definitions), ("solutions", solutions)):
        for item in items:
            path = root / kind / "all" / f"{item['name']}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(item))
    return root


@cache
def calls() -> dict[str, Callable[[], Any]]:
    """Return calls of each definition, whose results do not depend on what was called before."""
    import flashinfer

    x, weight = torch.randn(7, HIDDEN, **BF16), torch.randn(HIDDEN, **BF16)
    residual = torch.randn(7, HIDDEN, **BF16)

    def add_norm() -> Any:
        a, b = x.clone(), residual.clone()
        assert flashinfer.fused_add_rmsnorm(a, b, weight) is None
        return a, b

    def into() -> Any:
        out = torch.empty_like(x)
        assert flashinfer.rmsnorm(x, weight, out=out) is out
        return out

    single, paged, hnd, mla = Decode(1), Decode(16), Decode(16, "HND"), Mla()
    return {
        "rmsnorm": lambda: flashinfer.rmsnorm(x, weight),
        "rmsnorm, out=": into,
        "fused_add_rmsnorm": add_norm,
        "decode, pages of 1": single.run,
        "decode, with lse": lambda: single.run(return_lse=True),
        "decode, pages of 16": paged.run,
        "decode, HND": hnd.run,
        "decode, packed": Decode(16, packed=True).run,
        "decode, packed HND": Decode(16, "HND", packed=True).run,
        "mla decode, views": mla.run,
    }


def patched_places() -> dict[str, Any]:
    import flashinfer

    wrapper = flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper
    mla = flashinfer.mla.BatchMLAPagedAttentionWrapper
    return {
        "flashinfer.rmsnorm": flashinfer.rmsnorm,
        "flashinfer.norm.rmsnorm": flashinfer.norm.rmsnorm,
        "flashinfer.fused_add_rmsnorm": flashinfer.fused_add_rmsnorm,
        **{f"decode.{name}": vars(wrapper)[name] for name in ("plan", "begin_forward", "run")},
        **{f"mla.{name}": vars(mla)[name] for name in ("plan", "run")},
        "linear": torch.nn.functional.linear,
    }


def flat(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def require_close(left: Any, right: Any, what: str) -> float:
    worst = 0.0
    for a, b in zip(flat(left), flat(right), strict=True):
        torch.testing.assert_close(a, b, msg=lambda text: f"{what}: {text}", **TOLERANCE)
        worst = max(worst, float((a.float() - b.float()).abs().nan_to_num().max()))
    return worst


# -------------------------------------------------------------------------------------- checks


def check_builds() -> dict[str, Any]:
    """FlashInfer's own kernels are built, each in a process of its own."""
    folder = str(Path(__file__).parent)
    started = {
        name: subprocess.Popen(
            [sys.executable, "-c", BUILD.format(folder=folder, code=code)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name, code in BUILDS.items()
    }
    ended = {
        name: (process.communicate()[0], process.returncode) for name, process in started.items()
    }
    failed = {name: text[-1500:] for name, (text, code) in ended.items() if code}
    assert not failed, failed
    return {}


def check_trace() -> dict[str, Any]:
    """Every call is recorded once, as what it is; the calls return what they always do."""
    from flashinfer_bench import TraceSet
    from flashinfer_bench.tracing import enable_tracing

    before = {name: call() for name, call in calls().items()}
    places = patched_places()
    with enable_tracing(dataset()) as runtime:
        changed = [name for name, found in patched_places().items() if found is not places[name]]
        for _ in range(3):
            during = {name: call() for name, call in calls().items()}
        stats = runtime.stats()
    assert all(patched_places()[name] is found for name, found in places.items())
    for name, result in before.items():
        for a, b in zip(flat(result), flat(during[name]), strict=True):
            assert torch.equal(a, b), name
    workloads = TraceSet.from_path(dataset()).workloads
    counts = {name: len(found) for name, found in workloads.items()}
    assert set(counts) == {NORM, ADD_NORM, decode_name(1), decode_name(16), MLA}, (counts, stats)
    table = workloads[decode_name(16)][0].workload
    assert table.axes["num_kv_indices"] == Paged(16).pages, table
    assert table.inputs["kv_last_page_len"].type == "safetensors", table
    return {"workloads": counts, "patched": changed}


def check_benchmark() -> dict[str, Any]:
    """The solutions are judged on what was traced."""
    command = [*FIB, "run", "--local", str(dataset())]
    quick = ["--device", DEVICE, "--iterations", "10", "--num-trials", "1", "--warmup-runs", "2"]
    done = subprocess.run([*command, *quick], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "INCORRECT" not in done.stdout, done.stdout
    return {"table": done.stdout.splitlines()}


def check_apply() -> dict[str, Any]:
    """Each call is answered by a solution, as near to the original's as bf16 allows; then not."""
    import flashinfer

    from flashinfer_bench import enable_apply

    before = {name: call() for name, call in calls().items()}
    places, errors = patched_places(), {}
    with enable_apply(dataset()) as runtime:
        for _ in range(3):
            for name, call in calls().items():
                errors[name] = require_close(call(), before[name], name)
        stats = {name: (each.hits, dict(each.misses)) for name, each in runtime.stats().items()}
        problems = dict(runtime.problems)
        x, weight = torch.randn(7, HIDDEN, **BF16), torch.randn(HIDDEN, **BF16)
        odd = flashinfer.rmsnorm(x, weight, 1e-3)  # not the definition's eps
    assert torch.equal(odd, flashinfer.rmsnorm(x, weight, 1e-3))
    assert all(patched_places()[name] is found for name, found in places.items())
    hits = {name: found[0] for name, found in stats.items()}
    # The first call with views of each layout is compared, and answered by the original.
    wanted = {NORM: 6, ADD_NORM: 3, decode_name(1): 5, decode_name(16): 8, MLA: 2}
    assert hits == wanted, (stats, problems)
    for name, call in calls().items():
        for a, b in zip(flat(call()), flat(before[name]), strict=True):
            assert torch.equal(a, b), name
    return {"hits": hits, "largest error": errors}


def check_engine_calls() -> dict[str, Any]:
    """The deprecated calls that SGLang makes: begin_forward and forward, which set attributes."""
    from flashinfer_bench import enable_apply

    made, scale = Decode(1), 0.05
    made.plan("begin_forward")
    options = {"sm_scale": scale, "logits_soft_cap": 0.0, "k_scale": 1.0, "v_scale": 1.0}
    expected = made.wrapper.forward(made.q, made.kv, **options)
    with enable_apply(dataset()) as runtime:
        made.plan("begin_forward")
        for _ in range(2):  # the first time the views of the cache are new
            require_close(made.wrapper.forward(made.q, made.kv, **options), expected, "forward")
        capped = made.wrapper.forward(made.q, made.kv, **{**options, "window_left": 3})
        hits = runtime.stats()[made.name].hits
    assert hits == 1, runtime.stats()
    again = made.wrapper.forward(made.q, made.kv, **{**options, "window_left": 3})
    assert torch.equal(capped, again)
    return {}


def check_graphs() -> dict[str, Any]:
    """A graph that is captured while solutions are applied replays them, with new inputs."""
    import flashinfer

    from flashinfer_bench import enable_apply

    x, weight = torch.randn(7, HIDDEN, **BF16), torch.randn(HIDDEN, **BF16)
    made = Decode(1)
    with enable_apply(dataset()) as runtime:
        made.plan()

        def work() -> tuple[Any, Any]:
            return flashinfer.rmsnorm(x, weight), made.wrapper.run(made.q, made.kv)

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                work()
        torch.cuda.synchronize()
        hits = {name: each.hits for name, each in runtime.stats().items()}
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = work()
        captured = {name: each.hits - hits.get(name, 0) for name, each in runtime.stats().items()}
        new_x, new_q = torch.randn_like(x), torch.randn_like(made.q)
        x.copy_(new_x)
        made.q.copy_(new_q)
        graph.replay()
        torch.cuda.synchronize()
        replayed = [each.clone() for each in results]
    expected = flashinfer.rmsnorm(x, weight), made.wrapper.run(made.q, made.kv)
    worst = require_close(replayed, expected, "replay")
    assert captured.get(NORM) == captured.get(made.name) == 1, captured
    return {"captured": captured, "largest error": worst}


def mla_of_any_length(
    q_nope: Any, q_pe: Any, ckv_cache: Any, kpe_cache: Any, kv_indptr: Any, kv_indices: Any,
    sm_scale: float,
) -> tuple[Any, Any]:  # fmt: skip
    """What a graph can capture: reads the offsets on the device alone, up to 192 keys each."""
    at = torch.arange(192, device=kv_indptr.device)
    place = (kv_indptr[:-1, None] + at).clamp(max=kv_indices.shape[0] - 1)
    pages = kv_indices[place].long()
    ckv, kpe = ckv_cache[pages, 0].float(), kpe_cache[pages, 0].float()
    scores = torch.einsum("bhd,btd->bht", q_nope.float(), ckv)
    scores = (scores + torch.einsum("bhd,btd->bht", q_pe.float(), kpe)) * sm_scale
    there = at < (kv_indptr[1:] - kv_indptr[:-1])[:, None]
    scores = scores.masked_fill(~there[:, None], -math.inf)
    out = torch.einsum("bht,btd->bhd", scores.softmax(-1), ckv).to(q_nope.dtype)
    return out, torch.logsumexp(scores, -1) / math.log(2)


class MlaGraph(Mla):
    """An MLA decode that is captured with one key each, and replayed with its own lengths.

    Parameters
    ----------
    quick : bool
        Whether `plan` is replaced after the first plan, as SGLang does: by one that writes the
        schedule, and not the buffers.
    """

    def __init__(self, *, quick: bool) -> None:
        import flashinfer

        super().__init__()
        self.quick, batch = quick, len(self.lengths)
        self.buffers = {
            "qo_indptr": torch.arange(batch + 1, dtype=torch.int32, device=DEVICE),
            "kv_indptr": torch.arange(batch + 1, dtype=torch.int32, device=DEVICE),
            "kv_indices": torch.zeros(self.pages, dtype=torch.int32, device=DEVICE),
            "kv_len_arr": torch.ones(batch, dtype=torch.int32, device=DEVICE),
        }
        workspace = torch.empty(128 << 20, dtype=torch.uint8, device=DEVICE)
        self.wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(
            workspace, use_cuda_graph=True, **self.buffers, backend="fa2"
        )

    def plan(self, kv_indptr: Any, indices: Any, lengths: Any) -> None:
        scale = 1 / math.sqrt(128 + KPE)
        wrapper = self.wrapper
        if "plan" in vars(wrapper):
            self.buffers["kv_indices"].copy_(indices)
            wrapper.plan(self.qo_indptr, kv_indptr, lengths)
            return
        wrapper.plan(
            self.qo_indptr, kv_indptr, indices, lengths, MLA_HEADS, CKV, KPE, 1, False, scale,
            torch.bfloat16, torch.bfloat16,
        )  # fmt: skip
        if self.quick:
            wrapper.plan = self.quick_plan

    def quick_plan(self, qo_indptr: Any, kv_indptr: Any, lengths: Any) -> None:
        made = self.wrapper
        names = ("_float_workspace_buffer", "_int_workspace_buffer")
        places = [getattr(made, name) for name in (*names, "_pin_memory_int_workspace_buffer")]
        made._cached_module.plan(*places, qo_indptr, kv_indptr, lengths, MLA_HEADS, CKV, False)

    def attend(self) -> Any:
        return self.wrapper.run(
            self.q[..., :CKV], self.q[..., CKV:], self.kv[..., :CKV], self.kv[..., CKV:]
        )

    def replayed(self) -> Any:
        """Capture a run, and return what a replay computes."""
        ones = torch.ones(len(self.lengths), dtype=torch.int32)
        self.plan(self.qo_indptr, self.indices[: len(self.lengths)], ones)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(2):
                self.attend()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = self.attend()
        self.plan(self.indptr, self.indices, torch.tensor(self.lengths, dtype=torch.int32))
        graph.replay()
        torch.cuda.synchronize()
        return result.clone()


def check_mla_graphs() -> dict[str, Any]:
    """Replays are planned anew, by FlashInfer or by an engine in its place: both are right."""
    from flashinfer_bench import enable_apply
    from flashinfer_bench.routing.routes import route_stats

    label, errors = "flashinfer.mla.BatchMLAPagedAttentionWrapper.run", {}
    for quick in (False, True):
        made = MlaGraph(quick=quick)
        assert max(made.lengths) <= 192, made.lengths
        expected = made.replayed()
        taken: list[Any] = []

        def solution(
            q_nope: Any, q_pe: Any, ckv_cache: Any, kpe_cache: Any, kv_indptr: Any,
            kv_indices: Any, sm_scale: float, taken: list[Any] = taken,
        ) -> Any:  # fmt: skip
            taken.append(kv_indptr)
            return mla_of_any_length(
                q_nope, q_pe, ckv_cache, kpe_cache, kv_indptr, kv_indices, sm_scale
            )

        again = MlaGraph(quick=quick)
        again.q, again.kv, again.indices = made.q, made.kv, made.indices
        with enable_apply({MLA: solution}):
            found = again.replayed()
            refused = route_stats()[label]["refused"]
        name = "plan of an engine" if quick else "plan of FlashInfer"
        errors[name] = require_close(found, expected, name)
        assert len(taken) == (0 if quick else 3), (name, len(taken), refused)
    assert refused.get("plan replaced by the caller", 0) >= 3, refused
    return {"largest error": errors}


def check_traced_graph() -> dict[str, Any]:
    """What a graph computes is recorded with the values of a replay, not of the capture."""
    from flashinfer_bench import TraceSet
    from flashinfer_bench.tracing import enable_tracing

    made = Decode(1)
    batch, pages = len(made.lengths), made.pages
    import flashinfer

    buffers = {
        "paged_kv_indptr_buffer": torch.zeros(batch + 1, dtype=torch.int32, device=DEVICE),
        "paged_kv_indices_buffer": torch.zeros(2 * pages, dtype=torch.int32, device=DEVICE),
        "paged_kv_last_page_len_buffer": torch.ones(batch, dtype=torch.int32, device=DEVICE),
    }
    workspace = torch.empty(128 << 20, dtype=torch.uint8, device=DEVICE)
    made.wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace, "NHD", use_cuda_graph=True, **buffers
    )
    made.plan()
    made.wrapper.run(made.q, made.kv)
    known = {each.workload.uuid for each in TraceSet.from_path(dataset()).workloads[made.name]}
    with enable_tracing(dataset()) as runtime, runtime.cuda_graph_scope():
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            result = made.wrapper.run(made.q, made.kv)
        graph.replay()
        torch.cuda.synchronize()
        runtime.snapshot_graph_tensors()
        stats = runtime.stats()
    assert result is not None
    trace_set = TraceSet.from_path(dataset())
    added = [
        each.workload for each in trace_set.workloads[made.name] if each.workload.uuid not in known
    ]
    assert added, stats
    spec = added[-1].inputs["kv_indptr"]
    indptr = trace_set.get_workload_blob_tensor(spec.path)[spec.tensor_key]
    assert indptr.tolist() == made.indptr.tolist(), indptr
    return {"added": [each.axes for each in added]}


def check_templates() -> dict[str, Any]:
    """A function that FlashInfer has a template for, answered by a mapping."""
    import flashinfer

    from flashinfer_bench import enable_apply

    x = torch.randn(4, HIDDEN, **BF16)
    expected, called = flashinfer.silu_and_mul(x), []

    def silu_and_mul(**inputs: torch.Tensor) -> torch.Tensor:
        called.append(sorted(inputs))
        (value,) = (each for each in inputs.values() if isinstance(each, torch.Tensor))
        gate, up = value.float().chunk(2, -1)
        return (torch.nn.functional.silu(gate) * up).to(value.dtype)

    names = (f"silu_and_mul_h{HIDDEN // 2}", f"silu_and_mul_h{HIDDEN}")  # of out, or of input
    with enable_apply(dict.fromkeys(names, silu_and_mul)) as wrapped:
        require_close(flashinfer.silu_and_mul(x), expected, "silu_and_mul")
        stats = wrapped.stats()
    assert called, stats
    return {"wrapped": int(wrapped), "inputs": called[0], "stats": stats}


def check_environment() -> dict[str, Any]:
    """A program that does not import this package is traced, and has its calls substituted."""
    program = (
        "import torch, flashinfer\n"
        f"x, w = (torch.ones(n, {HIDDEN}, dtype=torch.bfloat16, device='cuda').squeeze(0) "
        "for n in (7, 1))\n"
        "for _ in range(3): flashinfer.rmsnorm(x, w)\n"
        "import sys\n"
        "apply = sys.modules.get('flashinfer_bench.apply')\n"
        f"print(apply.get_runtime().stats()['{NORM}'].hits if apply else 0)"
    )
    start = "from flashinfer_bench.engines import at_startup; at_startup()\n"  # as the .pth does
    environment = {**os.environ, "FIB_DATASET_PATH": str(dataset()), "FIB_ENABLE_APPLY": "1"}
    done = subprocess.run(
        [sys.executable, "-c", start + program], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "3", done.stdout + done.stderr
    return {}


def per_call_ns(call: Callable[[], Any], count: int = 300) -> float:
    """Return what a call costs the host, in nanoseconds; the device is kept from lagging behind."""
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for _ in range(count):
        call()
    spent = (time.perf_counter_ns() - start) / count
    torch.cuda.synchronize()
    return spent


def check_costs() -> dict[str, Any]:
    """What tracing adds to a call, and what substitution does, on the host; medians of 15."""
    import flashinfer

    from flashinfer_bench import enable_apply
    from flashinfer_bench.tracing import enable_tracing

    x, weight = torch.randn(7, HIDDEN, **BF16), torch.randn(HIDDEN, **BF16)
    made = Decode(1)
    made.plan()
    cases = {
        "rmsnorm": lambda: flashinfer.rmsnorm(x, weight),
        "decode": lambda: made.wrapper.run(made.q, made.kv),
    }
    figures: dict[str, Any] = {}
    for name, call in cases.items():
        call()
        off, on = [], []
        for _ in range(15):
            off.append(per_call_ns(call))
            with enable_tracing(dataset()):
                call()
                on.append(per_call_ns(call))
        extra = sorted(b - a for a, b in zip(off, on, strict=True))
        figures[f"{name}: original"] = round(statistics.median(off))
        figures[f"{name}: tracing adds"] = [round(extra[i]) for i in (3, 7, 11)]
    with enable_apply(dataset()):
        for name, call in cases.items():
            for _ in range(3):
                call()
            figures[f"{name}: substituted, whole call"] = round(
                statistics.median(per_call_ns(call, 100) for _ in range(9))
            )
    return figures


CHECKS = {name[6:]: value for name, value in list(globals().items()) if name.startswith("check_")}


def main() -> int:
    """Make all checks, or those whose names are given."""
    require_gpu()
    try:
        import flashinfer
    except ImportError as error:
        print(json.dumps({"skipped": f"FlashInfer cannot be imported: {error}"}))
        return 4
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    chosen = sys.argv[1:] or CHECKS
    found = run_checks({name: CHECKS[name] for name in chosen})
    versions = {"torch": torch.__version__, "flashinfer": flashinfer.__version__}
    report = {"device": torch.cuda.get_device_name(0), **versions, "checks": found}
    return told(report, failed(found))


if __name__ == "__main__":
    sys.exit(main())
