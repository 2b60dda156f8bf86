"""Top-4 routing: sort, take the first four, renormalise."""

import torch

TOPK = 4


@torch.no_grad()
def run(
    routing_logits: torch.Tensor, routed_scaling_factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    assert routing_logits.shape[-1] == 32
    probabilities = torch.softmax(routing_logits.to(torch.float32), dim=-1)
    # Sorted by logit: two logits that differ may round to one probability.
    order = torch.argsort(routing_logits, dim=-1, descending=True, stable=True)
    chosen = order[:, :TOPK]
    weights = torch.gather(probabilities, 1, chosen)
    weights = weights / weights.sum(dim=-1, keepdim=True) * routed_scaling_factor
    return chosen.to(torch.int32), weights
