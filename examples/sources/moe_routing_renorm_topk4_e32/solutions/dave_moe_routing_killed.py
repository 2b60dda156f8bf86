"""Crashes: dies by SIGKILL, as a process that ran out of memory does."""

import os
import signal

import torch


@torch.no_grad()
def run(
    routing_logits: torch.Tensor, routed_scaling_factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    os.kill(os.getpid(), signal.SIGKILL)
    return routing_logits, routing_logits
