"""Crashes: leaves the process with exit status 0, without an answer and without clean-up."""

import os

import torch


def run(A: torch.Tensor, B: torch.Tensor, C: torch.Tensor) -> None:
    torch.mm(A, B.t(), out=C)
    os._exit(0)
