"""Minimum work of calls that depends on page tables, lengths, selections or routing.

Operations are those of the matrix products in the classical algorithm, two per multiply-add: each
query with each token that it sees, each token with each of its experts. Bytes are those of the
outputs, and of the distinct rows that these products read: rows without an index are not read, and
repeated rows may come from a cache. Page tables, index pointers and per-tensor scales are not
counted.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy  # noqa: TID253 - required for counting

from flashinfer_bench.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from flashinfer_bench.data import Definition

_Run = tuple[int, int, int]  # page table entries: start, end; tokens in the last of these pages

_OUTPUTS = {"output", "lse", "topk_indices", "topk_scores"}
_SIZES = r"(_(h|kv|d|ckv|kpe|qk|vo|ps|topk)\d+)+"


class _Form(NamedTuple):
    """Names that identify a computation; one with a window, for example, has the same inputs."""

    name: str  # pattern of the definition's name
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    others: tuple[str, ...]
    leading: int = 2  # axes of the keys that index tokens

    def fits(self, definition: Definition) -> bool:
        optional = {"qo_indptr", "kv_last_page_len"}
        inputs = {*self.queries, *self.keys, *self.others}
        known = re.fullmatch(self.name + _SIZES, definition.name)
        return bool(known) and definition.inputs.keys() - optional == inputs - optional


_PAGED = r"_paged_(decode|prefill_causal)"
_LATENT = ("q_nope", "q_pe"), ("ckv_cache", "kpe_cache")
_PAGES = "kv_indptr", "kv_indices", "sm_scale"
_RUNS = "qo_indptr", "kv_indptr", "sm_scale"
_DENSE = (
    _Form(rf"gqa{_PAGED}", ("q",), ("k_cache", "v_cache"), _PAGES),
    _Form(rf"mla{_PAGED}", *_LATENT, _PAGES),
    _Form(r"(gqa|mla)_ragged_prefill_causal", ("q",), ("k", "v"), _RUNS, leading=1),
)
_SPARSE = _Form(
    r"[dn]sa_sparse_(attention|decode|prefill_causal)",
    *_LATENT,
    ("sparse_indices", "sm_scale"),
)
_INDEXERS = (
    _Form(
        r"dsa_topk_indexer_fp8",
        ("q_index_fp8", "weights"),
        ("k_index_cache_fp8",),
        ("seq_lens", "block_table"),
    ),
    _Form(r"nsa_topk_indexer", ("q_index",), ("k_index_cache",), ("seq_lens", "page_table")),
)
_ROUTED = re.compile(
    r"routing_(logits|bias)|topk_ids|local_expert_offset|hidden_states|gemm[12]_weights|\w*scal\w+"
)


def work(
    definition: Definition, axes: Mapping[str, int], inputs: Optional[Mapping[str, Any]] = None
) -> Optional[tuple[int, int]]:
    """Return the minimum bytes and operations of any correct solution.

    Parameters
    ----------
    definition : Definition
        Definition of attention, an indexer or a mixture of experts, named as in FlashInfer-Trace.
    axes : mapping of str to int
        Value of each variable axis.
    inputs : mapping of str to array or int, optional
        Integer inputs that are the same in each call, by name, in host memory: page tables,
        lengths, index pointers, selections. Without them only routing by logits has a bound.

    Returns
    -------
    tuple of int, or None
        None if unknown: another computation, other names, or a missing value.

    Notes
    -----
    With a causal mask, the last of m queries sees all n tokens, the one before it all but one, and
    so on [1]_: with r = min(m, n) these are r n - r (r - 1) / 2 pairs. The indexer of DSA sums
    ReLUs over its heads [2]_, so it needs a product for each head; a mean over heads needs only
    one, with the mean of the queries. If there are at most k tokens, they are selected without
    computing scores.

    References
    ----------
    .. [1] Z. Ye et al., "FlashInfer: Efficient and Customizable Attention Engine for LLM Inference
       Serving", MLSys 2025.
    .. [2] DeepSeek-AI, "DeepSeek-V3.2-Exp: Boosting Long-Context Efficiency with DeepSeek Sparse
       Attention", 2025.
    """
    if not definition.outputs.keys() <= _OUTPUTS:
        return None
    try:
        call = _Call(definition, axes, inputs or {})
        for forms, count in ((_DENSE, _dense), ((_SPARSE,), _sparse), (_INDEXERS, _indexer)):
            for form in forms:
                if form.fits(definition):
                    return count(call, form)
        if definition.op_type == "moe" and all(map(_ROUTED.fullmatch, definition.inputs)):
            return _experts(call)
    except (DataError, IndexError, KeyError, ValueError):
        pass  # an axis, a tensor or a value is missing, or is invalid in a page table
    return None


class _Call:
    """Shapes and values of one call."""

    def __init__(
        self, definition: Definition, axes: Mapping[str, int], values: Mapping[str, Any]
    ) -> None:
        specs = {**definition.inputs, **definition.outputs}
        shapes = (*definition.get_input_shapes(axes), *definition.get_output_shapes(axes))
        self.tensors = {
            name: (spec.dtype, shape)
            for (name, spec), shape in zip(specs.items(), shapes, strict=True)
            if shape is not None
        }
        self.definition = definition
        self.values = {name: numpy.asarray(value) for name, value in values.items()}
        self.written = self.nbytes(self.tensors.keys() & definition.outputs.keys())

    def nbytes(self, names: Iterable[str], leading: int = 0) -> int:
        """Return the total bytes of tensors, each without its leading axes."""
        tensors = (self.tensors[name] for name in names)
        return sum(dtype.nbytes(math.prod(shape[leading:])) for dtype, shape in tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name][1]

    def pointers(self, name: str, into: str) -> list[int]:
        """Return the boundaries of the sequences in a tensor."""
        found: list[int] = self.values[name].tolist()
        bounded = [0, *found, self.shape(into)[0]]
        if bounded != sorted(bounded):
            raise ValueError(f"{name} points outside of {into}, or back")
        return found

    def distinct(self, table: Any, runs: Iterable[_Run], form: _Form, size: int) -> int:
        """Return the number of distinct tokens of a cache in some runs of its page table."""
        tokens = math.prod(self.shape(form.keys[0])[: form.leading])
        used = numpy.zeros((tokens // size, size), dtype=bool)
        for first, last, tail in runs:
            used[table[first : last - 1]] = True
            used[table[last - 1], :tail] = True
        return int(used.sum())


def _attention(call: _Call, form: _Form, rows: int, pairs: int, tokens: int) -> tuple[int, int]:
    _, heads, width = call.shape("output")
    depth = sum(call.shape(name)[-1] for name in form.queries)
    read = rows * call.nbytes(form.queries, 1) + tokens * call.nbytes(form.keys, form.leading)
    return call.written + read, 2 * heads * (depth + width) * pairs


def _dense(call: _Call, form: _Form) -> tuple[int, int]:
    inputs, is_paged = call.definition.inputs, "kv_indices" in call.definition.inputs
    offsets = call.pointers("kv_indptr", "kv_indices" if is_paged else form.keys[0])
    queries: Sequence[int] = range(len(offsets))  # one per sequence
    if "qo_indptr" in inputs or "prefill" in call.definition.name:
        queries = call.pointers("qo_indptr", form.queries[0])
    size = call.shape(form.keys[0])[1] if is_paged else 1
    tails = [1] * len(offsets) if size == 1 else call.values["kv_last_page_len"].tolist()
    rows = pairs = tokens = 0
    runs: list[_Run] = []
    for place, (first, last) in enumerate(pairwise(offsets)):
        asked = queries[place + 1] - queries[place]
        if asked and last > first:
            tail = min(tails[place], size)
            known = (last - first - 1) * size + tail
            seeing = min(asked, known)
            rows += seeing
            pairs += seeing * known - seeing * (seeing - 1) // 2
            tokens += known
            runs.append((first, last, tail))
    if is_paged:
        tokens = call.distinct(call.values["kv_indices"], runs, form, size)
    return _attention(call, form, rows, pairs, tokens)


def _sparse(call: _Call, form: _Form) -> tuple[int, int]:
    indices = call.values["sparse_indices"]
    selected = indices[indices >= 0]
    rows, pairs = int((indices >= 0).any(-1).sum()), selected.size
    nbytes, operations = _attention(call, form, rows, pairs, numpy.unique(selected).size)
    return nbytes + selected.nbytes, operations


def _indexer(call: _Call, form: _Form) -> tuple[int, int]:
    lengths, table = call.values["seq_lens"].tolist(), call.values[form.others[1]]
    # Block tables list pages; page tables list tokens, whatever the page size.
    size = call.shape(form.keys[0])[1] if "block_table" in form.others else 1
    unseen = 0 if "topk_scores" in call.definition.outputs else call.shape("topk_indices")[1]
    runs, scored = [], 0
    for row, length in enumerate(lengths):
        known = min(length, table.shape[1] * size)
        if known > unseen:
            first, pages = row * table.shape[1], -(-known // size)
            runs.append((first, first + pages, known - (pages - 1) * size))
            scored += known
    _, heads, depth = call.shape(form.queries[0])
    tokens = call.distinct(table.flatten(), runs, form, size)
    read = len(runs) * call.nbytes(form.queries, 1) + tokens * call.nbytes(form.keys, 2)
    products = heads if "weights" in form.queries else 1
    return call.written + read, 2 * products * depth * scored


def _experts(call: _Call) -> Optional[tuple[int, int]]:
    names, values = call.definition.inputs, call.values
    weights = [name for name in names if name.startswith("gemm") and len(call.shape(name)) > 1]
    count, tokens = call.shape("gemm1_weights")[0], call.shape("hidden_states")[0]
    if "topk_ids" in names:  # expert in the upper half, bits of its weight in the lower half
        ids = values["topk_ids"]
        expert = ids >> 16
        used = (expert >= 0) & (expert < count) & (ids & 0x7FFF != 0)
        hit, tokens = numpy.unique(expert[used]).size, int(used.any(-1).sum())
        pairs = numpy.unique(used.nonzero()[0] * count + expert[used]).size
    else:
        offset = values["local_expert_offset"] if "local_expert_offset" in names else 0
        if call.shape("routing_logits")[-1] != count or offset != 0:
            return None  # other devices may do all of the work
        chosen = call.definition.const_axes["top_k"]
        # A token's experts are distinct, but all tokens may have the same experts.
        hit, pairs = min(tokens, 1) * chosen, tokens * chosen
    operations = 2 * pairs * sum(math.prod(call.shape(f"gemm{n}_weights")[1:]) for n in (1, 2))
    read = hit * call.nbytes(weights, 1) + tokens * call.nbytes(("hidden_states",), 1)
    return call.written + read, operations
