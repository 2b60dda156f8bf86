"""Renormalised probabilities are the softmax of the chosen logits alone: no pass over the rest."""

import torch


@torch.no_grad()
def run(
    routing_logits: torch.Tensor,
    routed_scaling_factor: float,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
) -> None:
    logits, chosen = torch.topk(routing_logits, topk_ids.shape[-1], dim=-1)
    topk_ids.copy_(chosen)
    torch.softmax(logits, dim=-1, out=topk_weights).mul_(routed_scaling_factor)
