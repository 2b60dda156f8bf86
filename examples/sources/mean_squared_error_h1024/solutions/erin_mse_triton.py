"""Mean squared error in Triton: each program sums eight rows, an atomic joins the sums."""

import torch
import triton
import triton.language as tl

ROWS = 8


@triton.jit
def _sum_squares(a_ptr, b_ptr, out_ptr, rows, share, ROWS: tl.constexpr, HIDDEN: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    places = row[:, None] * HIDDEN + tl.arange(0, HIDDEN)[None, :]
    inside = (row < rows)[:, None]
    a = tl.load(a_ptr + places, mask=inside, other=0.0)
    b = tl.load(b_ptr + places, mask=inside, other=0.0)
    difference = a - b
    tl.atomic_add(out_ptr, tl.sum(difference * difference) * share)


def run(prediction: torch.Tensor, target: torch.Tensor, loss: torch.Tensor) -> None:
    rows, hidden = prediction.shape
    loss.zero_()
    grid = (triton.cdiv(rows, ROWS),)
    share = 1.0 / (rows * hidden)
    _sum_squares[grid](prediction, target, loss, rows, share, ROWS=ROWS, HIDDEN=hidden)
