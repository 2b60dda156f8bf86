"""The scores by which a sparse-attention indexer selects tokens, computed by the judge.

Two forms are known, told apart by the inputs that a definition has:

* FP8 (DeepSeek-V3.2, as deep_gemm lays it out): ``q_index_fp8`` [batch, heads, d], ``weights``
  [batch, heads], and ``k_index_cache_fp8`` [pages, page size, 1, d + 4] as bytes: per page first
  all values, then one float32 scale for each token. Pages of a sequence come from ``block_table``;
  the score of a token is Σ over heads of weight · relu(q · k).
* Plain: ``q_index`` [batch, heads, d], ``k_index_cache`` [pages, page size, d], and ``page_table``
  with the token numbers of each sequence; the score is the mean over heads of q · k.

``seq_lens`` says how many tokens of a sequence there are. A token's number is page · page size +
place in the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

_SCALE_BYTES = 4


@dataclass(frozen=True)
class Candidates:
    """The tokens that one row selects from.

    Attributes
    ----------
    tokens : torch.Tensor
        Their numbers, int64; one that a table names twice is here twice.
    scores : torch.Tensor
        Their scores, float32.
    """

    tokens: torch.Tensor
    scores: torch.Tensor


def candidates_of(given: Mapping[str, Any]) -> Optional[Iterator[Candidates]]:
    """Return the candidates of each row, or None if the inputs are of no form that is known.

    Parameters
    ----------
    given : mapping of str to Any
        The inputs by name.
    """
    fp8 = {"q_index_fp8", "k_index_cache_fp8", "weights", "seq_lens", "block_table"}
    plain = {"q_index", "k_index_cache", "seq_lens", "page_table"}
    if fp8 == set(given):
        return _fp8_rows(given) if _is_fp8_layout(given) else None
    return _plain_rows(given) if plain == set(given) else None


def _is_fp8_layout(given: Mapping[str, Any]) -> bool:
    query, cache = given["q_index_fp8"], given["k_index_cache_fp8"]
    layout = (1, query.shape[-1] + _SCALE_BYTES)
    return cache.element_size() == 1 and tuple(cache.shape[-2:]) == layout


def _fp8_rows(given: Mapping[str, Any]) -> Iterator[Candidates]:
    import torch

    cache, page_size = given["k_index_cache_fp8"], given["k_index_cache_fp8"].shape[1]
    paged = cache.contiguous().view(torch.uint8).reshape(len(cache), -1)
    queries = given["q_index_fp8"].float()
    within = torch.arange(page_size)
    weights_by_row = given["weights"].float()
    rows = zip(queries, weights_by_row, _lengths(given), given["block_table"], strict=True)
    for query, weights, length, table in rows:
        pages = table[: -(-length // page_size)].long()
        keys = _fp8_keys(paged[pages], page_size, query.shape[-1])[:length]
        scores = weights @ torch.relu_(query @ keys.T)
        tokens = (pages[:, None] * page_size + within).flatten()[:length]
        yield Candidates(tokens, scores)


def _fp8_keys(paged: torch.Tensor, page_size: int, dim: int) -> torch.Tensor:
    import torch

    values = paged[:, : page_size * dim].contiguous().view(torch.float8_e4m3fn).float()
    scales = paged[:, page_size * dim :].contiguous().view(torch.float32)
    return (values.reshape(len(paged), page_size, dim) * scales[..., None]).reshape(-1, dim)


def _plain_rows(given: Mapping[str, Any]) -> Iterator[Candidates]:
    keys = given["k_index_cache"].flatten(0, 1)
    rows = zip(given["q_index"].float(), _lengths(given), given["page_table"], strict=True)
    for query, length, table in rows:
        tokens = table[:length].long()
        # The mean over heads of a product is the product with the mean over heads.
        yield Candidates(tokens, keys[tokens].float() @ query.mean(dim=0))


def _lengths(given: Mapping[str, Any]) -> list[int]:
    return [int(length) for length in given["seq_lens"].tolist()]
