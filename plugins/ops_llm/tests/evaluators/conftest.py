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


def definition(name, op_type, axes, inputs, outputs, reference):
    def tensor(spec):
        shape, _, dtype = spec.rpartition(" ")
        return {"shape": shape.split(",") if shape else None, "dtype": dtype}

    sizes = {
        axis: {"type": "var"} if size is None else {"type": "const", "value": size}
        for axis, size in axes.items()
    }
    return Definition(
        name=name,
        op_type=op_type,
        axes=sizes,
        inputs={key: tensor(spec) for key, spec in inputs.items()},
        outputs={key: tensor(spec) for key, spec in outputs.items()},
        reference=reference,
    )


def sampling_definition(vocabulary=40, **more):
    filters = more or {"top_k": "rows int32", "top_p": "rows float32"}
    return definition(
        "draw_tokens",
        "sampling",
        {"rows": None, "vocabulary": vocabulary},
        {"probs": "rows,vocabulary float32", **filters},
        {"samples": "rows int64"},
        SAMPLING_REFERENCE,
    )


def moe_definition():
    return definition(
        "block_scaled_experts",
        "moe",
        {"tokens": None, "experts": 6, "hidden": 32, "inner": 48},
        {
            "logits": "tokens,experts float32",
            "x": "tokens,hidden float8_e4m3fn",
            "x_scale": "tokens float32",
            "w": "experts,hidden,inner float8_e4m3fn",
        },
        {"output": "tokens,inner bfloat16"},
        MOE_REFERENCE,
    )


def attention_definition():
    return definition(
        "attend_to_chosen",
        "dsa_paged",
        {"tokens": None, "heads": 2, "dim": 32, "rope": 8, "size": 4, "room": 48, "pages": None},
        {
            "q_nope": "tokens,heads,dim bfloat16",
            "q_pe": "tokens,heads,rope bfloat16",
            "ckv_cache": "pages,size,dim bfloat16",
            "kpe_cache": "pages,size,rope bfloat16",
            "sparse_indices": "tokens,room int32",
            "sm_scale": " float32",
        },
        {"output": "tokens,heads,dim bfloat16", "lse": "tokens,heads float32"},
        ATTENTION_REFERENCE,
    )


def fp8_indexer_definition():
    return definition(
        "choose_in_fp8",
        "dsa_paged",
        {"rows": None, "heads": 4, "dim": 16, "size": 4, "one": 1, "bytes": 20, "room": 8}
        | {"pages": None, "most": None},
        {
            "q_index_fp8": "rows,heads,dim float8_e4m3fn",
            "k_index_cache_fp8": "pages,size,one,bytes int8",
            "weights": "rows,heads float32",
            "seq_lens": "rows int32",
            "block_table": "rows,most int32",
        },
        {"topk_indices": "rows,room int32"},
        FP8_CACHE_REFERENCE,
    )


def plain_indexer_definition():
    return definition(
        "choose_plainly",
        "nsa_paged",
        {"rows": None, "heads": 4, "dim": 16, "size": 4, "room": 6, "pages": None, "most": None},
        {
            "q_index": "rows,heads,dim bfloat16",
            "k_index_cache": "pages,size,dim bfloat16",
            "seq_lens": "rows int32",
            "page_table": "rows,most int32",
        },
        {"topk_indices": "rows,room int32", "topk_scores": "rows,room float32"},
        PLAIN_REFERENCE,
    )


def expected_of(definition, inputs):
    space = {}
    exec(definition.reference, space)
    found = space["run"](*inputs)
    if isinstance(found, dict):
        found = tuple(found.values())
    return list(found) if isinstance(found, tuple) else [found]


class Asked:
    """A definition with inputs, and the evaluator that is found for it."""

    def __init__(self, definition, inputs, axes, **settings):
        self.definition = definition
        self.workload = Workload(axes=axes, inputs={}, uuid="w")
        self.trial = Trial(0, 7, inputs, expected_of(definition, inputs))
        self.evaluator = resolve_evaluator(definition)
        self.configured(**settings)

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


def fp8_cache(pages, size, dim, generator):
    """Return a cache in which all values of a page stand before all of its scales."""
    values = torch.randn(pages, size * dim, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.rand(pages, size, generator=generator) + 0.5
    parts = [values.view(torch.uint8), scales.view(torch.uint8)]
    return torch.cat(parts, dim=1).view(torch.int8).reshape(pages, size, 1, dim + 4)


@pytest.fixture
def fp8_indexer():
    generator = torch.Generator().manual_seed(3)
    pages, rows = 12, 4
    table = torch.stack([torch.randperm(pages, generator=generator)[:5] for _ in range(rows)])
    inputs = [
        torch.randn(rows, 4, 16, generator=generator).to(torch.float8_e4m3fn),
        fp8_cache(pages, 4, 16, generator),
        torch.randn(rows, 4, generator=generator),
        torch.tensor([20, 17, 5, 0], dtype=torch.int32),
        table.int(),
    ]
    return Asked(fp8_indexer_definition(), inputs, {"rows": rows, "pages": pages, "most": 5})


@pytest.fixture
def plain_indexer():
    generator = torch.Generator().manual_seed(4)
    pages, rows = 8, 3
    table = torch.stack([torch.randperm(4 * pages, generator=generator)[:16] for _ in range(rows)])
    inputs = [
        torch.randn(rows, 4, 16, generator=generator).bfloat16(),
        torch.randn(pages, 4, 16, generator=generator).bfloat16(),
        torch.tensor([16, 9, 2], dtype=torch.int32),
        table.int(),
    ]
    return Asked(plain_indexer_definition(), inputs, {"rows": rows, "pages": pages, "most": 16})


def attention_inputs(seed=5, tokens=4, pages=40):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).bfloat16()

    chosen = torch.stack([torch.randperm(4 * pages, generator=generator)[:48] for _ in range(4)])
    chosen[1, 30:] = -1
    chosen[2] = -1
    return [
        normal(tokens, 2, 32),
        normal(tokens, 2, 8),
        normal(pages, 4, 32),
        normal(pages, 4, 8),
        chosen.int(),
        0.158,
    ]


@pytest.fixture
def attention():
    return Asked(attention_definition(), attention_inputs(), {"tokens": 4, "pages": 40})


def moe_inputs(seed=6, tokens=400):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(tokens, 6, generator=generator),
        torch.randn(tokens, 32, generator=generator).to(torch.float8_e4m3fn),
        torch.rand(tokens, generator=generator) + 0.5,
        torch.randn(6, 32, 48, generator=generator).to(torch.float8_e4m3fn),
    ]


@pytest.fixture
def moe():
    return Asked(moe_definition(), moe_inputs(), {"tokens": 400})


@pytest.fixture
def sampler():
    """Make a sampling problem out of probabilities and filters."""

    def make(probs, **filters):
        probs = torch.as_tensor(probs, dtype=torch.float32)
        given = {
            name: torch.as_tensor(values, dtype=torch.float32).expand(len(probs))
            for name, values in filters.items()
        }
        specs = dict.fromkeys(given, "rows float32")
        made = sampling_definition(probs.shape[1], **(specs or {"top_p": "rows float32"}))
        given = given or {"top_p": torch.ones(len(probs))}
        asked = Asked.__new__(Asked)
        asked.definition = made
        asked.workload = Workload(axes={"rows": len(probs)}, inputs={}, uuid="w")
        samples = torch.zeros(len(probs), dtype=torch.int64)
        asked.trial = Trial(0, 7, [probs, *given.values()], [samples])
        asked.evaluator = resolve_evaluator(made)
        return asked.configured()

    return make
