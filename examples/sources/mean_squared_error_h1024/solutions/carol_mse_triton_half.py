"""Mean squared error in Triton that looks at the first half of each row."""

import torch
import triton
import triton.language as tl


@triton.jit
def _row(a_ptr, b_ptr, out_ptr, share, HIDDEN: tl.constexpr):
    places = tl.program_id(0) * HIDDEN + tl.arange(0, HIDDEN // 2)
    difference = tl.load(a_ptr + places) - tl.load(b_ptr + places)
    tl.atomic_add(out_ptr, tl.sum(difference * difference) * share)


def run(prediction: torch.Tensor, target: torch.Tensor, loss: torch.Tensor) -> None:
    rows, hidden = prediction.shape
    loss.zero_()
    _row[(rows,)](prediction, target, loss, 1.0 / (rows * hidden), HIDDEN=hidden)
