"""Does not build: imports an extension that is not installed."""

import torch
from sample_gemm_extension_that_is_not_installed import gemm  # type: ignore[import-not-found]


def run(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return gemm(A, B)
