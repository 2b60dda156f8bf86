"""Does not build: refuses at import when an imaginary accelerator is absent."""

import importlib.util

import torch

if importlib.util.find_spec("sample_rotary_unit") is None:
    raise RuntimeError("no rotary unit on this machine")


@torch.no_grad()
def run(
    q: torch.Tensor,
    k: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
) -> None:
    torch.ops.sample_rotary_unit.rotate(q, k, cos_sin_cache, positions, q_out, k_out)
