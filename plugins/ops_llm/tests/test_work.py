"""The least work of attention, indexers and mixtures of experts, counted again one by one."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fib_ops_llm.work import work
from flashinfer_bench import Definition

pytestmark = pytest.mark.torch

PAGES, BF16, I32, F32 = 5, "bfloat16", "int32", "float32"
CONST = {
    "num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 3, "head_dim_ckv": 3, "head_dim_kpe": 2,
    "qk_dim": 3, "vo_dim": 2, "heads": 2, "depth": 3, "topk": 2, "E": 4, "H": 3, "I": 2, "G": 4,
    "top_k": 2, "S": 6,
}  # fmt: skip
SHAPES = {
    "q": ("rows num_qo_heads head_dim", BF16),
    "q_nope": ("rows num_qo_heads head_dim_ckv", BF16),
    "q_pe": ("rows num_qo_heads head_dim_kpe", BF16),
    "k_cache": ("num_pages page_size num_kv_heads head_dim", BF16),
    "v_cache": ("num_pages page_size num_kv_heads head_dim", BF16),
    "ckv_cache": ("num_pages page_size head_dim_ckv", BF16),
    "kpe_cache": ("num_pages page_size head_dim_kpe", BF16),
    "k": ("total_kv num_kv_heads head_dim", BF16),
    "v": ("total_kv num_kv_heads vo_dim", BF16),
    "qo_indptr": ("len_indptr", I32),
    "kv_indptr": ("len_indptr", I32),
    "kv_indices": ("num_kv_indices", I32),
    "kv_last_page_len": ("num_seqs", I32),
    "sparse_indices": ("rows topk", I32),
    "sm_scale": (None, F32),
    "q_index_fp8": ("rows heads depth", "float8_e4m3fn"),
    "k_index_cache_fp8": ("num_pages page_size one depth", "int8"),
    "q_index": ("rows heads depth", BF16),
    "k_index_cache": ("num_pages page_size depth", BF16),
    "weights": ("rows heads", F32),
    "seq_lens": ("rows", I32),
    "block_table": ("rows columns", I32),
    "page_table": ("rows columns", I32),
    "routing_logits": ("tokens E", F32),
    "topk_ids": ("tokens top_k", I32),
    "hidden_states": ("tokens H", "float8_e4m3fn"),
    "gemm1_weights": ("E G H", "float8_e4m3fn"),
    "gemm1_weights_scale": ("E G one", F32),
    "gemm2_weights": ("E H I", "float8_e4m3fn"),
    "local_expert_offset": (None, I32),
    "output": ("rows num_qo_heads head_dim", BF16),
    "lse": ("rows num_qo_heads", F32),
    "topk_indices": ("rows topk", I32),
    "topk_scores": ("rows topk", F32),
}
LATENT = "q_nope q_pe ckv_cache kpe_cache"


def made(name, op_type, inputs, outputs="output lse", **other):
    """Return a definition of those tensors, and of `other` shapes."""
    shapes = SHAPES | {one: (shape, SHAPES[one][1]) for one, shape in other.items()}
    inputs, outputs = (
        {one: {"shape": shapes[one][0] and shapes[one][0].split(), "dtype": shapes[one][1]}
         for one in names.split()}
        for names in (inputs, outputs)
    )  # fmt: skip
    axes = {axis for one in (inputs | outputs).values() for axis in one["shape"] or ()}
    axes |= {"top_k"} if op_type == "moe" else set()
    given = {axis: {"type": "var"} for axis in axes}
    const = CONST | {"one": 1}
    given |= {axis: {"type": "const", "value": const[axis]} for axis in axes & const.keys()}
    reference = "def run(*args):\n    pass\n"
    content = {"name": name, "op_type": op_type, "axes": given, "reference": reference}
    return Definition.model_validate(content | {"inputs": inputs, "outputs": outputs})


def ints(values):
    return torch.tensor(values, dtype=torch.int32)


def touched(queries, keys, seen):
    """Return of how many rows a NaN gets into the result, of queries and of keys.

    `seen` has the places of the keys that each query sees.
    """

    def attend():
        outputs = []
        for query, places in zip(queries, seen, strict=True):
            some = keys[places]
            outputs.append(torch.softmax(some @ query, 0) @ some if places else torch.zeros(3))
        return torch.stack(outputs).isnan().any() if outputs else torch.tensor(False)

    counts = []
    for tensor in (queries, keys):
        count = 0
        for row in range(len(tensor)):
            before, tensor[row] = tensor[row].clone(), math.nan
            count += bool(attend())
            tensor[row] = before
        counts.append(count)
    return counts


@st.composite
def batches(draw, *, decode, paged):
    """Draw sequences with few pages, so that many share some: ``(asked, pages, tail)``."""
    size = draw(st.sampled_from((1, 3))) if paged else 1
    page = st.integers(0, PAGES - 1)
    sequence = st.tuples(
        st.just(1) if decode else st.integers(0, 4),
        st.lists(page, max_size=4),
        st.integers(1, size + 1),  # no more of a page is read than there is
    )
    return size, draw(st.lists(sequence, max_size=4))


DENSE = [  # elements of a query and of an output in each head, and of a token
    ("gqa", "paged", "q k_cache v_cache kv_indptr kv_indices sm_scale", (3, 3, 12)),
    ("mla", "paged", f"{LATENT} kv_indptr kv_indices sm_scale", (5, 3, 5)),
    ("mla", "ragged", "q k v kv_indptr sm_scale", (3, 2, 10)),
]


@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize(("kind", "layout", "inputs", "sizes"), DENSE)
@given(data=st.data())
def test_attention_reads_what_its_page_table_names(data, kind, layout, inputs, sizes, decode):
    paged = layout == "paged"
    decode = decode and paged
    size, batch = data.draw(batches(decode=decode, paged=paged))
    inputs += "" if decode else " qo_indptr"
    inputs += " kv_last_page_len" if size > 1 else ""
    name = f"{kind}_{layout}_{'decode' if decode else 'prefill_causal'}_h4_kv2"
    width = "head_dim" if paged else "vo_dim"
    one = made(name, f"{kind}_{layout}", inputs, output=f"rows num_qo_heads {width}")
    table, seen, kv, qo = [], [], [0], [0]
    for asked, pages, tail in batch:
        tokens = [page * size + place for page in pages for place in range(size)]
        if not paged:  # each sequence has keys of its own
            tokens = list(range(kv[-1], kv[-1] + len(pages)))
        tokens = tokens[: (len(pages) - 1) * size + tail] if pages else []
        seen += [tokens[: max(len(tokens) - asked + row + 1, 0)] for row in range(asked)]
        table += pages
        kv.append(kv[-1] + len(pages))
        qo.append(qo[-1] + asked)
    axes = {
        "rows": len(seen), "num_pages": PAGES, "page_size": size, "total_kv": kv[-1],
        "len_indptr": len(kv), "num_kv_indices": len(table), "num_seqs": len(batch),
    }  # fmt: skip
    axes = {name: axes[name] for name in one.var_axes}
    values = {"kv_indptr": ints(kv), "kv_indices": ints(table), "qo_indptr": ints(qo)}
    values["kv_last_page_len"] = ints([tail for _, _, tail in batch])
    keys = torch.randn(PAGES * size if paged else kv[-1], 3)
    queries, tokens = touched(torch.randn(len(seen), 3), keys, seen)
    depth, width, token = sizes
    nbytes = len(seen) * 4 * (2 * width + 4) + queries * 4 * depth * 2 + tokens * token * 2
    operations = sum(2 * 4 * (depth + width) * len(places) for places in seen)
    assert work(one, axes, values) == (nbytes, operations)
    assert work(one, axes) is None


@pytest.mark.parametrize("name", ["dsa_sparse_attention_h4", "nsa_sparse_decode_h4"])
@given(st.lists(st.lists(st.integers(-1, 2 * PAGES - 1), min_size=2, max_size=2), max_size=4))
def test_sparse_attention_reads_what_is_selected(name, selected):
    one = made(name, "dsa_paged", f"{LATENT} sparse_indices sm_scale")
    seen = [[place for place in row if place >= 0] for row in selected]
    queries, tokens = touched(torch.randn(len(seen), 3), torch.randn(2 * PAGES, 3), seen)
    pairs = sum(map(len, seen))
    nbytes = len(seen) * 4 * (6 + 4) + pairs * 4 + queries * 4 * 5 * 2 + tokens * 5 * 2
    values = {"sparse_indices": ints(selected).reshape(-1, 2)}
    axes = {"rows": len(seen), "num_pages": PAGES, "page_size": 2}
    assert work(one, axes, values) == (nbytes, pairs * 2 * 4 * (5 + 3))


@pytest.mark.parametrize("scores", [False, True])
@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.lists(st.integers(0, PAGES - 1), min_size=3, max_size=3)),
        max_size=4,
    )
)
def test_an_indexer_scores_where_it_has_a_choice(scores, batch):
    lengths, pages = ints([length for length, _ in batch]), [row for _, row in batch]
    axes = {"rows": len(batch), "num_pages": PAGES, "page_size": 2, "columns": 3}
    if scores:  # tokens, and a mean over heads
        outputs, sizes = "topk_indices topk_scores", (2 * 3 * 2, 3 * 2, 2 * 3)
        inputs = "q_index k_index_cache seq_lens page_table"
        one = made("nsa_topk_indexer_h2", "nsa_paged", inputs, outputs)
        table = "page_table"
        tokens = [row[:length] for length, row in batch]
    else:  # pages, and ReLUs
        outputs, sizes = "topk_indices", (2 * 3 + 2 * 4, 3, 2 * 2 * 3)
        inputs = "q_index_fp8 k_index_cache_fp8 weights seq_lens block_table"
        one = made("dsa_topk_indexer_fp8_h2", "dsa_paged", inputs, outputs)
        table = "block_table"
        tokens = [[2 * page + place for page in row for place in (0, 1)] for row in pages]
        tokens = [row[:length] for row, (length, _) in zip(tokens, batch, strict=True)]
        tokens = [row for row in tokens if len(row) > CONST["topk"]]
    tokens = [row for row in tokens if row]
    query, token, operations = sizes
    distinct = {place for row in tokens for place in row}
    written = len(batch) * 2 * 4 * len(outputs.split())
    expected = written + len(tokens) * query + len(distinct) * token
    values = {"seq_lens": lengths, table: ints(pages).reshape(-1, 3)}
    assert work(one, axes, values) == (expected, operations * sum(map(len, tokens)))


EXPERT = 4 * 3 + 4 * 4 + 3 * 2, 2 * (4 * 3 + 3 * 2)  # bytes with scales, operations for a token
MOE = "hidden_states gemm1_weights gemm1_weights_scale gemm2_weights"


@given(st.lists(st.lists(st.integers(-1, 5), min_size=2, max_size=2), max_size=5), st.data())
def test_experts_without_tokens_are_not_read(experts, data):
    one = made("moe_routed", "moe", f"topk_ids {MOE}", "output", output="tokens H")
    bits = [[data.draw(st.sampled_from((0, 0x3F80, 0xBF80))) for _ in row] for row in experts]
    used = {
        (token, expert)
        for token, (row, weights) in enumerate(zip(experts, bits, strict=True))
        for expert, weight in zip(row, weights, strict=True)
        if 0 <= expert < CONST["E"] and weight
    }
    packed = [[e * 65536 + w for e, w in zip(*both)] for both in zip(experts, bits, strict=True)]  # noqa: B905
    values = {"topk_ids": ints(packed).reshape(-1, 2)}
    hit, tokens = {expert for _, expert in used}, {token for token, _ in used}
    nbytes = len(experts) * 3 * 2 + len(hit) * EXPERT[0] + len(tokens) * 3
    assert work(one, {"tokens": len(experts)}, values) == (nbytes, len(used) * EXPERT[1])


@given(st.integers(0, 5), st.integers(0, 2**16))
def test_routing_by_logits_has_a_bound_for_any_logits(tokens, seed):
    one = made("moe_any", "moe", f"routing_logits {MOE}", "output", output="tokens H")
    logits = torch.randn(tokens, CONST["E"], generator=torch.Generator().manual_seed(seed))
    hit = logits.topk(CONST["top_k"]).indices.unique().numel()
    nbytes, operations = work(one, {"tokens": tokens})
    assert operations == tokens * CONST["top_k"] * EXPERT[1]
    most = tokens * 3 * 2 + hit * EXPERT[0] + tokens * 3
    assert nbytes <= most
    assert tokens > 1 or nbytes == most


def test_experts_of_other_devices_may_have_all_tokens():
    inputs = f"routing_logits {MOE} local_expert_offset"
    whole = made("moe_all", "moe", inputs, "output", output="tokens H")
    assert work(whole, {"tokens": 2}) is None
    assert work(whole, {"tokens": 2}, {"local_expert_offset": 4}) is None
    assert work(whole, {"tokens": 2}, {"local_expert_offset": 0})
    other = {"output": "tokens H", "routing_logits": "tokens S"}
    part = made("moe_part", "moe", inputs, "output", **other)
    assert work(part, {"tokens": 2}, {"local_expert_offset": 0}) is None


PAGED = "q k_cache v_cache kv_indptr kv_indices sm_scale"
AXES = {"rows": 2, "num_pages": 5, "page_size": 1, "len_indptr": 3, "num_kv_indices": 4}


@pytest.mark.parametrize(
    ("name", "inputs", "axes", "values"),
    [
        ("gqa_paged_decode_swa128_h4", PAGED, {}, {}),  # a window, perhaps
        ("gqa_paged_prefill_causal_h4", PAGED, {}, {}),
        ("gqa_paged_decode_h4", f"{PAGED} weights", {"heads": 1}, {}),
        ("gqa_paged_decode_h4", PAGED.replace("q ", "q_pe "), {}, {}),
        ("gqa_paged_decode_h4", PAGED, {"num_pages": None}, {}),
        ("gqa_paged_decode_h4", PAGED, {"page_size": 2}, {}),  # of which the last is not known
        ("gqa_paged_decode_h4", PAGED, {}, {"kv_indices": None}),
        ("gqa_paged_decode_h4", PAGED, {}, {"kv_indptr": ints([0, 3, 2])}),
        ("gqa_paged_decode_h4", PAGED, {}, {"kv_indptr": ints([0, 3, 9])}),
        ("gqa_paged_decode_h4", PAGED, {}, {"kv_indices": ints([0, 1, 2, 5])}),
    ],
)
def test_what_surprises_has_no_work(name, inputs, axes, values):
    usual = {"kv_indptr": ints([0, 3, 4]), "kv_indices": ints([0, 1, 2, 0])}
    assert work(made("gqa_paged_decode_h4", "gqa_paged", PAGED), AXES, usual)
    axes, values = ({k: v for k, v in one.items() if v is not None}
                    for one in (AXES | axes, usual | values))  # fmt: skip
    assert work(made(name, "gqa_paged", inputs), axes, values) is None


def test_an_output_of_another_name_may_be_a_view():
    one = made("gqa_paged_decode_h4", "gqa_paged", PAGED, "output topk_scores q_pe")
    values = {"kv_indptr": ints([0, 3, 4]), "kv_indices": ints([0, 1, 2, 0])}
    assert work(one, AXES, values) is None
