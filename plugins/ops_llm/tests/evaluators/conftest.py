"""Small definitions of the shapes that special evaluators judge, and ways to ask an evaluator."""

import numpy as np
import pytest
import torch

from flashinfer_bench.bench import BenchmarkConfig, resolve_evaluator
from flashinfer_bench.bench.evaluators import Trial
from flashinfer_bench.data import Definition, Workload

FP8_CACHE_REFERENCE = """
import torch

def run(q_index_fp8, k_index_cache_fp8, weights, seq_lens, block_table):
    pages, size = k_index_cache_fp8.shape[:2]
    dim, room = q_index_fp8.shape[-1], 8
    flat = k_index_cache_fp8.view(torch.uint8).reshape(pages, -1)
    keys = flat[:, :size * dim].contiguous().view(torch.float8_e4m3fn).float()
    scales = flat[:, size * dim:].contiguous().view(torch.float32)
    keys = keys.reshape(pages, size, dim) * scales[..., None]
    chosen = torch.full((len(seq_lens), room), -1, dtype=torch.int32)
    for row, length in enumerate(seq_lens.tolist()):
        table = block_table[row, : (length + size - 1) // size].long()
        of_row = keys[table].reshape(-1, dim)[:length]
        scores = (q_index_fp8[row].float() @ of_row.T).relu()
        scores = (scores * weights[row][:, None]).sum(0)
        best = scores.topk(min(room, length)).indices
        tokens = table[best // size] * size + best % size
        chosen[row, : len(tokens)] = tokens.int()
    return (chosen,)
"""

PLAIN_REFERENCE = """
import torch

def run(q_index, k_index_cache, seq_lens, page_table):
    keys, room = k_index_cache.flatten(0, 1).float(), 6
    chosen = torch.full((len(seq_lens), room), -1, dtype=torch.int32)
    scores = torch.full((len(seq_lens), room), -float("inf"))
    for row, length in enumerate(seq_lens.tolist()):
        tokens = page_table[row, :length].long()
        of_row = (q_index[row].float() @ keys[tokens].T).mean(0)
        values, places = of_row.topk(min(room, length))
        chosen[row, : len(places)] = tokens[places].int()
        scores[row, : len(places)] = values
    return {"topk_indices": chosen, "topk_scores": scores}
"""

ATTENTION_REFERENCE = """
import math
import torch

def run(q_nope, q_pe, ckv_cache, kpe_cache, sparse_indices, sm_scale):
    kc, kp = ckv_cache.flatten(0, 1).float(), kpe_cache.flatten(0, 1).float()
    output = torch.zeros_like(q_nope)
    lse = torch.full(q_nope.shape[:2], -math.inf)
    for row, chosen in enumerate(sparse_indices):
        chosen = chosen[chosen != -1].long()
        if chosen.numel() == 0:
            continue
        logits = q_nope[row].float() @ kc[chosen].T + q_pe[row].float() @ kp[chosen].T
        logits = logits * sm_scale
        lse[row] = torch.logsumexp(logits, -1) / math.log(2)
        output[row] = (torch.softmax(logits, -1) @ kc[chosen]).to(output.dtype)
    return output, lse
"""

MOE_REFERENCE = """
import torch

def run(logits, x, x_scale, w):
    weights, chosen = torch.softmax(logits.float(), -1).topk(2)
    hidden = x.float() * x_scale[:, None]
    each = torch.einsum("th,tehi->tei", hidden, w.float()[chosen])
    return (each * weights[..., None]).sum(1).bfloat16() * 0.1
"""

SAMPLING_REFERENCE = """
import torch

def run(probs, top_k, top_p):
    samples = torch.empty(len(probs), dtype=torch.int64)
    for row, weights in enumerate(probs):
        k, p = int(top_k[row]), float(top_p[row])
        values, tokens = weights.sort(descending=True)
        if 0 < k < len(values):
            values = torch.where(torch.arange(len(values)) < k, values, 0)
        values = values / values.sum()
        if p < 1:
            before = values.cumsum(0) - values
            values = torch.where(before <= max(p, 0.0), values, 0)
        samples[row] = tokens[torch.multinomial(values, 1)]
    return samples
"""


def expected_of(definition, inputs):
    space = {}
    exec(definition.reference, space)
    found = space["run"](*inputs)
    if isinstance(found, dict):
        found = tuple(found.values())
    return list(found) if isinstance(found, tuple) else [found]


class Asked:
    """A definition with inputs, and the evaluator that is found for it."""

    def __init__(self, definition, inputs, axes, expected=None):
        self.definition = definition
        self.workload = Workload(axes=axes, inputs={}, uuid="w")
        self.trial = Trial(0, 7, inputs, expected or expected_of(definition, inputs))
        self.evaluator = resolve_evaluator(definition)
        self.configured()

    def configured(self, extra=None, **settings):
        resolved = BenchmarkConfig(**settings).resolve_eval_config(self.definition)
        merged = {**resolved.extra, **(extra or {})}
        self.config = resolved.model_copy(update={"extra": merged})
        return self

    def check(self, *calls, trial=None):
        problem = self.definition, self.workload, trial or self.trial
        return self.evaluator.check(*problem, calls, self.config)

    def check_timed(self, outputs):
        problem = self.definition, self.workload, self.trial
        return self.evaluator.check_timed(*problem, outputs, self.config)

    def right(self):
        pairs = zip(self.trial.expected, self.definition.torch_output_dtypes, strict=True)
        return [tensor.to(dtype, copy=True) for tensor, dtype in pairs]


def make(op_type, reference, axes, constants, inputs, outputs, expected=None):
    """Make a problem of sizes of axes, inputs with their values, and outputs."""

    def tensor(spec):
        shape, _, dtype = spec.rpartition(" ")
        return {"shape": shape.split(",") if shape else None, "dtype": dtype}

    definition = Definition(
        name="problem",
        op_type=op_type,
        axes={axis: {"type": "var"} for axis in axes}
        | {axis: {"type": "const", "value": size} for axis, size in constants.items()},
        inputs={key: tensor(spec) for key, (spec, _) in inputs.items()},
        outputs={key: tensor(spec) for key, spec in outputs.items()},
        reference=reference,
    )
    return Asked(definition, [value for _, value in inputs.values()], axes, expected)


def fp8_cache(pages, size, dim, generator):
    """Return a cache in which all values of a page stand before all of its scales."""
    values = torch.randn(pages, size * dim, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.rand(pages, size, generator=generator) + 0.5
    parts = [values.view(torch.uint8), scales.view(torch.uint8)]
    return torch.cat(parts, dim=1).view(torch.int8).reshape(pages, size, 1, dim + 4)


@pytest.fixture
def fp8_indexer():
    generator = torch.Generator().manual_seed(3)
    table = torch.stack([torch.randperm(12, generator=generator)[:5] for _ in range(4)])
    queries = torch.randn(4, 4, 16, generator=generator).to(torch.float8_e4m3fn)
    cache = fp8_cache(12, 4, 16, generator)
    lengths = torch.tensor([20, 17, 5, 0], dtype=torch.int32)
    return make(
        "dsa_paged",
        FP8_CACHE_REFERENCE,
        {"rows": 4, "pages": 12, "most": 5},
        {"heads": 4, "dim": 16, "size": 4, "one": 1, "bytes": 20, "room": 8},
        {
            "q_index_fp8": ("rows,heads,dim float8_e4m3fn", queries),
            "k_index_cache_fp8": ("pages,size,one,bytes int8", cache),
            "weights": ("rows,heads float32", torch.randn(4, 4, generator=generator)),
            "seq_lens": ("rows int32", lengths),
            "block_table": ("rows,most int32", table.int()),
        },
        {"topk_indices": "rows,room int32"},
    )


@pytest.fixture
def plain_indexer():
    generator = torch.Generator().manual_seed(4)
    table = torch.stack([torch.randperm(32, generator=generator)[:16] for _ in range(3)])
    queries = torch.randn(3, 4, 16, generator=generator).bfloat16()
    cache = torch.randn(8, 4, 16, generator=generator).bfloat16()
    return make(
        "nsa_paged",
        PLAIN_REFERENCE,
        {"rows": 3, "pages": 8, "most": 16},
        {"heads": 4, "dim": 16, "size": 4, "room": 6},
        {
            "q_index": ("rows,heads,dim bfloat16", queries),
            "k_index_cache": ("pages,size,dim bfloat16", cache),
            "seq_lens": ("rows int32", torch.tensor([16, 9, 2], dtype=torch.int32)),
            "page_table": ("rows,most int32", table.int()),
        },
        {"topk_indices": "rows,room int32", "topk_scores": "rows,room float32"},
    )


@pytest.fixture
def attention():
    generator = torch.Generator().manual_seed(5)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).bfloat16()

    chosen = torch.stack([torch.randperm(160, generator=generator)[:48] for _ in range(4)])
    chosen[1, 30:] = -1
    chosen[2] = -1
    return make(
        "dsa_paged",
        ATTENTION_REFERENCE,
        {"tokens": 4, "pages": 40},
        {"heads": 2, "dim": 32, "rope": 8, "size": 4, "room": 48},
        {
            "q_nope": ("tokens,heads,dim bfloat16", normal(4, 2, 32)),
            "q_pe": ("tokens,heads,rope bfloat16", normal(4, 2, 8)),
            "ckv_cache": ("pages,size,dim bfloat16", normal(40, 4, 32)),
            "kpe_cache": ("pages,size,rope bfloat16", normal(40, 4, 8)),
            "sparse_indices": ("tokens,room int32", chosen.int()),
            "sm_scale": (" float32", 0.158),
        },
        {"output": "tokens,heads,dim bfloat16", "lse": "tokens,heads float32"},
    )


@pytest.fixture
def moe():
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(400, 6, generator=generator)
    x = torch.randn(400, 32, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.rand(400, generator=generator) + 0.5
    weights = torch.randn(6, 32, 48, generator=generator).to(torch.float8_e4m3fn)
    return make(
        "moe",
        MOE_REFERENCE,
        {"tokens": 400},
        {"experts": 6, "hidden": 32, "inner": 48},
        {
            "logits": ("tokens,experts float32", logits),
            "x": ("tokens,hidden float8_e4m3fn", x),
            "x_scale": ("tokens float32", scales),
            "w": ("experts,hidden,inner float8_e4m3fn", weights),
        },
        {"output": "tokens,inner bfloat16"},
    )


@pytest.fixture
def sampler():
    """Make a sampling problem out of probabilities and filters."""

    def sampler(probs, **filters):
        probs = torch.as_tensor(probs, dtype=torch.float32)
        rows, vocabulary = probs.shape
        inputs = {"probs": ("rows,vocabulary float32", probs)}
        for name, values in (filters or {"top_p": 1.0}).items():
            value = torch.as_tensor(values, dtype=torch.float32).expand(rows)
            inputs[name] = ("rows float32", value)
        samples = [torch.zeros(rows, dtype=torch.int64)]
        axes, outputs = {"rows": rows}, {"samples": "rows int64"}
        constants = {"vocabulary": vocabulary}
        return make("sampling", SAMPLING_REFERENCE, axes, constants, inputs, outputs, samples)

    return sampler
