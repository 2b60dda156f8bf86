"""Softmax over all experts, then top-k, then renormalisation."""

import torch


@torch.no_grad()
def run(
    routing_logits: torch.Tensor, routed_scaling_factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    probabilities = torch.softmax(routing_logits, dim=-1)
    _, chosen = torch.topk(routing_logits, 4, dim=-1)
    weights = probabilities.gather(1, chosen)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return chosen.to(torch.int32), weights * routed_scaling_factor
