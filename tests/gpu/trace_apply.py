"""Trace Apply on the real FlashInfer: solutions without a dataset, good, slow and broken ones.

For each of five functions three solutions are mapped, one after the other: a good one and a slow
one have to answer with what FlashInfer computes, and a broken one has to raise in the program. Half
of them are objects of FlashInfer's own `Solution`, where the release has it. Prints a line for each
case. Exit code 1 if one is not as expected, 4 if there is no GPU.
"""

from __future__ import annotations

import math
import sys
import time
import traceback
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from common import require_gpu, solution

from flashinfer_bench.apply import enable_apply, stats
from flashinfer_bench.data import Solution

if TYPE_CHECKING:
    from collections.abc import Callable

H, HQ, HKV, D, PAGE = 4096, 32, 8, 128, 16
HEADS, CKV, KPE = 16, 512, 64
DEVICE, DTYPE = "cuda", torch.bfloat16
HEAD = """import functools
import math
import torch


def slow(function):
    @functools.wraps(function)
    def slowly(*args, **kwargs):
        torch.cuda._sleep(20_000_000)
        return function(*args, **kwargs)

    return slowly


def broken(function):
    @functools.wraps(function)
    def wrong(*args, **kwargs):
        found = function(*args, **kwargs)
        several = found if isinstance(found, tuple) else (found,)
        several = tuple(each.flatten()[:-1] for each in several)
        return several if isinstance(found, tuple) else several[0]

    return wrong


"""

NORM = """def run(hidden_states, weight):
    x = hidden_states.float()
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight.float()
    return y.to(hidden_states.dtype)
"""
FUSED = """def run(hidden_states, residual, weight):
    x = hidden_states.float() + residual.float()
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight.float()
    return y.to(hidden_states.dtype), x.to(residual.dtype)
"""
ATTEND = """def attend(q, k, v, scale):
    scores = torch.einsum("hd,nhd->hn", q, k) * scale
    lse = torch.logsumexp(scores, -1) / math.log(2)
    return torch.einsum("hn,nhd->hd", scores.softmax(-1), v), lse


"""
DECODE = """def run(
    q, k_cache, v_cache, kv_indptr, kv_indices, kv_last_page_len, sm_scale, return_lse=False
):
    found = []
    for i in range(q.shape[0]):
        pages = kv_indices[kv_indptr[i] : kv_indptr[i + 1]].long()
        length = (len(pages) - 1) * k_cache.shape[1] + int(kv_last_page_len[i])
        group = q.shape[1] // k_cache.shape[2]
        k, v = (
            each[pages].flatten(0, 1)[:length].float().repeat_interleave(group, 1)
            for each in (k_cache, v_cache)
        )
        found.append(attend(q[i].float(), k, v, sm_scale))
    output, lse = (torch.stack(each) for each in zip(*found))
    return output.to(q.dtype), lse
"""
MLA = """def run(q_nope, q_pe, ckv_cache, kpe_cache, kv_indptr, kv_indices, sm_scale, return_lse):
    found = []
    for i in range(q_nope.shape[0]):
        pages = kv_indices[kv_indptr[i] : kv_indptr[i + 1]].long()
        ckv, kpe = (each[pages].flatten(0, 1).float() for each in (ckv_cache, kpe_cache))
        q = torch.cat([q_nope[i], q_pe[i]], -1).float()
        heads = q.shape[0]
        k = torch.cat([ckv, kpe], -1)[:, None].expand(-1, heads, -1)
        found.append(attend(q, k, ckv[:, None].expand(-1, heads, -1), sm_scale))
    output, lse = (torch.stack(each) for each in zip(*found))
    return output.to(q_nope.dtype), lse
"""
SILU = """def run(input):
    gate, up = input.float().chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).to(input.dtype)
"""


class Case(NamedTuple):
    """A function of FlashInfer, called with tensors of its own each time."""

    label: str
    definition: str
    code: str
    call: Callable[[], Any]


def random(*shape: int) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(*shape, device=DEVICE, dtype=DTYPE)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def cases() -> list[Case]:
    import flashinfer

    workspace = torch.empty(128 << 20, dtype=torch.uint8, device=DEVICE)

    def rmsnorm() -> Any:
        return flashinfer.rmsnorm(random(64, H), random(H))

    def fused() -> Any:
        x, residual = random(64, H), random(64, H).flip(0)
        assert flashinfer.fused_add_rmsnorm(x, residual, random(H)) is None
        return x, residual

    decoder = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)

    def decode() -> Any:
        table = ints(0, 2, 3, 6), ints(5, 0, 3, 7, 1, 2), ints(PAGE, 1, 7)
        decoder.plan(*table, HQ, HKV, D, PAGE, q_data_type=DTYPE, kv_data_type=DTYPE)
        cache = random(8, PAGE, HKV, D), random(8, PAGE, HKV, D).flip(0)
        return decoder.run(random(3, HQ, D), cache, return_lse=True)

    latent = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace, backend="fa2")

    def mla() -> Any:
        arrays = ints(0, 1, 2), ints(0, 70, 103), ints(*range(109, 6, -1))
        scale = 1 / math.sqrt(128 + 64)
        latent.plan(*arrays, ints(70, 33), HEADS, CKV, KPE, 1, False, scale, DTYPE, DTYPE)
        queries = random(2, HEADS, CKV), random(2, HEADS, KPE)
        return latent.run(*queries, random(110, 1, CKV), random(110, 1, KPE), return_lse=True)

    def silu() -> Any:
        out = torch.empty(64, H, device=DEVICE, dtype=DTYPE)
        assert flashinfer.silu_and_mul(random(64, 2 * H), out=out) is out
        return out

    sizes = f"h{HQ}_kv{HKV}_d{D}_ps{PAGE}"
    return [
        Case("flashinfer.norm.rmsnorm", f"rmsnorm_h{H}", NORM, rmsnorm),
        Case("flashinfer.norm.fused_add_rmsnorm", f"fused_add_rmsnorm_h{H}", FUSED, fused),
        Case(f"{'flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper'}.run",
             f"gqa_paged_decode_{sizes}", ATTEND + DECODE, decode),
        Case("flashinfer.mla.BatchMLAPagedAttentionWrapper.run",
             f"mla_paged_decode_h{HEADS}_ckv{CKV}_kpe{KPE}_ps1", ATTEND + MLA, mla),
        Case("flashinfer.activation.silu_and_mul", f"silu_and_mul_h{2 * H}", SILU, silu),
    ]  # fmt: skip


KINDS = {"good": "", "slow": "@slow\n", "broken": "@broken\n"}
_ANYTHING = (Exception,)


def made(case: Case, kind: str, *, theirs: bool) -> Any:
    code = HEAD + case.code.replace("def run(", f"{KINDS[kind]}def run(")
    record = solution(kind, case.definition, code)
    if theirs:
        from flashinfer import trace

        if hasattr(trace, "Solution"):
            return trace.Solution.from_dict(record)
    return Solution.model_validate(record)


def problem(case: Case, kind: str, expected: Any, *, theirs: bool) -> str:
    """Return what is not as expected; empty if nothing."""
    with enable_apply({case.definition: made(case, kind, theirs=theirs)}):
        try:
            found = case.call()
        except _ANYTHING as error:
            counted = stats().get(case.label, {})
            right = kind == "broken" and (counted.get("error"), counted.get("hit")) == (1, 0)
            return "" if right else f"raised {type(error).__name__}: {error}; counted {counted}"
        counted = stats().get(case.label, {})
    if kind == "broken":
        return f"did not raise; counted {counted}"
    if (counted.get("hit"), counted.get("fallback"), counted.get("error")) != (1, 0, 0):
        return f"counted {counted}"
    return "" if close(found, expected) else "other values than FlashInfer's"


def close(found: Any, expected: Any) -> bool:
    pairs = zip(
        *((x,) if isinstance(x, torch.Tensor) else x for x in (found, expected)), strict=True
    )
    return all(torch.allclose(a.float(), b.float(), atol=3e-2, rtol=3e-2) for a, b in pairs)


def main() -> int:
    require_gpu()
    warnings.simplefilter("ignore")
    wrong = 0
    for number, case in enumerate(cases()):
        expected = case.call()
        for index, kind in enumerate(KINDS):
            began = time.perf_counter()
            try:
                said = problem(case, kind, expected, theirs=bool((number + index) % 2))
                torch.cuda.synchronize()
            except _ANYTHING:
                said = traceback.format_exc().strip().replace("\n", " | ")
            wrong += bool(said)
            seconds = time.perf_counter() - began
            print(f"{'FAILED' if said else 'ok':6} {case.definition} {kind} {seconds:.2f} s {said}")
        if not close(case.call(), expected):
            wrong += 1
            print(f"FAILED {case.definition} is not FlashInfer's own any more")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
