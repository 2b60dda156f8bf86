"""A small engine in a complete cycle: trace, benchmark, apply.

The engine is a language model over bytes with random weights, which decodes several prompts at once
with a paged cache of keys and values. It contains no code for tracing or substitution: it calls
``torch.nn.functional.linear``, and functions that are decorated with ``@apply``; on a GPU with
FlashInfer it calls FlashInfer's own functions instead.

One command runs the whole cycle, on a laptop in about a minute::

    python examples/mini_engine.py cycle --output mini-engine-output

1. The engine runs with ``FIB_ENABLE_TRACING=1``: its calls become workloads.
2. ``fib trace summary`` shows them, and ``fib sanitize`` removes useless ones.
3. ``fib run`` judges all solutions of the sample dataset on them.
4. The engine runs with ``FIB_ENABLE_APPLY=1``: its calls go to the best solutions. The answers must
   be the same as before.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

SAMPLE = Path(__file__).parent / "sample-dataset"
PROMPTS = ("The ", "To be", "2, 3,", "Hi")

HIDDEN, LAYERS, QO_HEADS, KV_HEADS, HEAD_DIM = 512, 2, 8, 2, 64
VOCABULARY = 256  # bytes
PAGES = 1024  # each holds one token
EPS = 1e-6

# The definitions that the engine's calls match; solutions of these authors are benchmarked.
DEFINITIONS = ("fused_add_rmsnorm_h512", "gemm_n256_k256", "gqa_paged_decode_h8_kv2_d64_ps1")
AUTHORS = ("baseline", "alice", "bob", "carol")


# --------------------------------------------------------------------------------------- engine


@dataclass
class Layer:
    """Weights of one layer."""

    norm: object
    qkv: object
    out: object


@dataclass
class Cache:
    """Keys and values of one layer, and the owner of each page."""

    keys: object
    values: object
    pages: list[list[int]] = field(default_factory=list)


def make_ops(device: str):
    """Return ``(fused_add_rmsnorm, decode)``: FlashInfer's on a GPU if available, else our own."""
    if device != "cpu":
        try:
            import flashinfer
        except ImportError:
            flashinfer = None
        if flashinfer is not None:
            return _flashinfer_ops(flashinfer, device)
    return _own_ops()


def _own_ops():
    import torch

    from flashinfer_bench import apply

    @apply("fused_add_rmsnorm_h512")
    def normalise(hidden_states, residual, weight):
        x = hidden_states.float() + residual.float()
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
        return (x * scale * weight.float()).to(hidden_states.dtype)

    def fused_add_rmsnorm(x, residual, weight):
        normalised = normalise(x, residual, weight)
        residual += x
        return normalised

    @apply("gqa_paged_decode_h8_kv2_d64_ps1")
    def attend(q, k_cache, v_cache, kv_indptr, kv_indices, sm_scale):
        out = torch.zeros_like(q)
        lse = torch.full(q.shape[:2], -math.inf, dtype=torch.float32, device=q.device)
        for i, (start, end) in enumerate(pairwise(kv_indptr.tolist())):
            pages = kv_indices[start:end].long()
            k, v = (each[pages, 0].float().repeat_interleave(4, 1) for each in (k_cache, v_cache))
            logits = torch.einsum("hd,thd->ht", q[i].float(), k) * sm_scale
            lse[i] = torch.logsumexp(logits, -1) / math.log(2)
            out[i] = torch.einsum("ht,thd->hd", logits.softmax(-1), v).to(q.dtype)
        return out, lse

    def decode(q, cache, indptr, indices):
        scale = 1 / math.sqrt(HEAD_DIM)
        return attend(q, cache.keys, cache.values, indptr, indices, scale)[0]

    return fused_add_rmsnorm, decode


def _flashinfer_ops(flashinfer, device: str):
    import torch

    workspace = torch.empty(64 << 20, dtype=torch.uint8, device=device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")

    def fused_add_rmsnorm(x, residual, weight):
        normalised = x.clone()
        flashinfer.fused_add_rmsnorm(normalised, residual, weight, EPS)
        return normalised

    def decode(q, cache, indptr, indices):
        last = torch.ones(len(indptr) - 1, dtype=torch.int32)
        wrapper.plan(
            indptr.cpu(), indices, last, QO_HEADS, KV_HEADS, HEAD_DIM, 1,
            q_data_type=q.dtype, kv_data_type=q.dtype,
        )  # fmt: skip
        return wrapper.run(q, (cache.keys, cache.values))

    return fused_add_rmsnorm, decode


class Engine:
    """The model and its caches.

    Parameters
    ----------
    device : str
        ``cpu`` or ``cuda``.
    """

    def __init__(self, device: str) -> None:
        import torch

        self.torch, self.device = torch, device
        generator = torch.Generator().manual_seed(7)

        def weight(*shape, dtype=torch.bfloat16):
            made = torch.randn(shape, generator=generator) / math.sqrt(shape[-1])
            return made.to(device, dtype)

        heads = QO_HEADS + 2 * KV_HEADS
        self.embedding = weight(VOCABULARY, HIDDEN)
        self.layers = [
            Layer(
                torch.ones(HIDDEN, dtype=torch.bfloat16, device=device),
                weight(heads * HEAD_DIM, HIDDEN),
                weight(HIDDEN, QO_HEADS * HEAD_DIM),
            )
            for _ in range(LAYERS)
        ]
        self.squeeze = weight(VOCABULARY, HIDDEN)
        self.head = weight(VOCABULARY, VOCABULARY, dtype=torch.float32)
        shape = (PAGES, 1, KV_HEADS, HEAD_DIM)
        self.caches = [
            Cache(*(torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in range(2)))
            for _ in range(LAYERS)
        ]
        self.fused_add_rmsnorm, self.decode = make_ops(device)
        self._next_page = 0

    def step(self, tokens: list[int], pages: list[list[int]]):
        """Return the logits after one more token per sequence, whose page is added to `pages`."""
        torch, linear = self.torch, self.torch.nn.functional.linear
        new = range(self._next_page, self._next_page + len(tokens))
        self._next_page += len(tokens)
        for owned, page in zip(pages, new, strict=True):
            owned.append(page)
        int32 = {"dtype": torch.int32, "device": self.device}
        lengths = torch.tensor([0, *map(len, pages)], **int32)
        indptr = lengths.cumsum(0, dtype=torch.int32)
        indices = torch.tensor([page for owned in pages for page in owned], **int32)
        written = torch.tensor(list(new), device=self.device)

        x = self.embedding[torch.tensor(tokens, device=self.device)]
        residual = torch.zeros_like(x)
        for layer, cache in zip(self.layers, self.caches, strict=True):
            x = self.fused_add_rmsnorm(x, residual, layer.norm)
            qkv = linear(x, layer.qkv).view(len(tokens), -1, HEAD_DIM)
            q, k, v = qkv.split([QO_HEADS, KV_HEADS, KV_HEADS], dim=1)
            cache.keys[written, 0], cache.values[written, 0] = k, v
            attended = self.decode(q.contiguous(), cache, indptr, indices)
            x = linear(attended.flatten(1), layer.out)
        x = self.fused_add_rmsnorm(x, residual, self.layers[0].norm)
        return linear(linear(x, self.squeeze).float(), self.head)

    def generate(self, prompts: list[bytes], steps: int) -> tuple[list[bytes], object]:
        """Return the greedily decoded text after each prompt, and the last logits."""
        pages: list[list[int]] = [[] for _ in prompts]
        said = [bytearray() for _ in prompts]
        longest = max(map(len, prompts))
        tokens, logits = [prompt[0] for prompt in prompts], None
        for position in range(1, longest + steps):
            logits = self.step(tokens, pages)
            best = logits.argmax(-1).tolist()
            for i, prompt in enumerate(prompts):
                tokens[i] = prompt[position] if position < len(prompt) else best[i]
                if position >= len(prompt):
                    said[i].append(best[i])
        return [bytes(each[:steps]) for each in said], logits


def generate(device: str, steps: int, repeats: int) -> dict[str, object]:
    """Run the engine; return its answers, the sum of its logits and the time of a step."""
    import torch

    prompts = [prompt.encode() for prompt in PROMPTS]
    with torch.inference_mode():
        seconds = []
        for _ in range(repeats):
            engine, start = Engine(device), time.perf_counter()
            said, logits = engine.generate(prompts, steps)
            seconds.append(time.perf_counter() - start)
    count = max(map(len, prompts)) + steps - 1
    return {
        "said": [each.hex() for each in said],
        "logits": [round(value, 4) for value in logits.flatten().tolist()],
        "step_ms": round(sorted(seconds)[len(seconds) // 2] / count * 1e3, 3),
        "hits": _hits(),
    }


def _hits() -> dict[str, int]:
    """Return the number of calls that solutions answered, by definition, for the report."""
    module = sys.modules.get("flashinfer_bench.apply")
    runtime = module.get_runtime() if module is not None else None
    stats = runtime.stats() if hasattr(runtime, "stats") else {}
    return {name: each.hits for name, each in stats.items() if each.hits}


# ---------------------------------------------------------------------------------------- cycle


def run_engine(
    dataset: Path, args: argparse.Namespace, repeats: int = 0, **variables: str
) -> dict[str, object]:
    """Run the engine in a separate process, as a user would."""
    environment = {**os.environ, "FIB_DATASET_PATH": str(dataset), **variables}
    command = [sys.executable, __file__, "generate", "--json", "--device", args.device]
    command += ["--steps", str(args.steps), "--repeats", str(repeats or args.repeats)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def fib(*arguments: str, codes: tuple[int, ...] = (0,)) -> None:
    """Run the command line tool."""
    print("\n$ fib", *arguments, flush=True)
    code = subprocess.run([sys.executable, "-m", "flashinfer_bench", *arguments]).returncode
    if code not in codes:
        sys.exit(f"fib {arguments[0]} ended with {code}")


def prepare(dataset: Path) -> None:
    """Copy definitions and some solutions of the sample dataset, but not its workloads."""
    shutil.rmtree(dataset, ignore_errors=True)
    shutil.copytree(SAMPLE / "definitions", dataset / "definitions")
    for author in AUTHORS:
        shutil.copytree(SAMPLE / "solutions" / author, dataset / "solutions" / author)


def cycle(args: argparse.Namespace) -> int:
    """Trace, benchmark, apply; return 0 if the engine's answers are the same at the end."""
    dataset = Path(args.output).absolute()
    prepare(dataset)
    print(f"1. Run the engine, and trace it into {dataset}", flush=True)
    before = run_engine(dataset, args)
    run_engine(dataset, args, repeats=1, FIB_ENABLE_TRACING="1")
    fib("trace", "summary", "--local", str(dataset))
    fib("sanitize", "--local", str(dataset))
    print("\n2. Judge the solutions on the traced workloads", flush=True)
    quick = ("--warmup-runs", "2", "--iterations", "10", "--num-trials", "1")
    chosen = ("--definitions", *DEFINITIONS, "--device", args.device)
    # 4 means that something is missing here for some solutions.
    fib("run", "--local", str(dataset), *quick, *chosen, codes=(0, 4))
    print("\n3. Run the engine with the best solutions", flush=True)
    after = run_engine(dataset, args, FIB_ENABLE_APPLY="1")
    return report(before, after)


def report(before: dict[str, object], after: dict[str, object]) -> int:
    """Print what changed; return 1 if the answers differ, or nothing was applied."""
    pairs = list(zip(before["logits"], after["logits"], strict=True))
    error = max(abs(left - right) for left, right in pairs)
    same = sum(left == right for left, right in zip(before["said"], after["said"], strict=True))
    print(f"calls answered by solutions: {after['hits'] or 'none'}")
    print(f"identical answers: {same} of {len(before['said'])}")
    print(f"largest difference of a final logit: {error:.2g}")
    print(f"one step: {before['step_ms']} ms before, {after['step_ms']} ms after")
    return 0 if after["hits"] and same == len(before["said"]) else 1


def main() -> int:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("generate", "cycle"))
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--steps", type=int, default=8, help="bytes after the longest prompt")
    parser.add_argument("--repeats", type=int, default=3, help="runs; the median is reported")
    parser.add_argument("--output", default="mini-engine-output", help="the dataset of the cycle")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    if args.command == "cycle":
        return cycle(args)
    found = generate(args.device, args.steps, args.repeats)
    print(json.dumps(found) if args.json else found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
