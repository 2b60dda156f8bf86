"""Matrix products for measuring what a device computes at most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def product(device: str, dtype: str, side: int) -> Callable[[], object]:
    """Return a function that multiplies two square matrices of zeros on the current stream.

    Zeros, because a GPU computes faster on them: they take less power, so that clocks stay high.

    Parameters
    ----------
    device : str
        ``cpu`` or ``cuda:N``.
    dtype : str
        Of the elements.
    side : int
        Rows and columns.

    Raises
    ------
    RuntimeError, NotImplementedError, TypeError, ValueError
        If this torch cannot do it there.
    """
    import torch

    found = getattr(torch, dtype, None)
    if found is None:
        raise NotImplementedError(f"torch {torch.__version__} has no {dtype}")
    a = torch.zeros(side, side, dtype=torch.float32, device=device).to(found)
    b = a.clone()
    if dtype.startswith("float8"):
        return _scaled(torch, a, b)
    if dtype == "int8":
        return _integers(torch, a, b)
    out = torch.empty_like(a)
    return lambda: torch.matmul(a, b, out=out)


def _scaled(torch: Any, a: Any, b: Any) -> Callable[[], object]:
    if not hasattr(torch, "_scaled_mm"):
        raise NotImplementedError("this torch has no product of 8-bit floats")
    one = torch.ones((), dtype=torch.float32, device=a.device)
    columns = b.t()  # the second factor has to be column-major
    kwargs = {"use_fast_accum": True} if a.is_cuda else {}

    def multiply() -> object:
        return torch._scaled_mm(
            a, columns, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, **kwargs
        )

    multiply()
    return multiply


def _integers(torch: Any, a: Any, b: Any) -> Callable[[], object]:
    if not hasattr(torch, "_int_mm"):
        raise NotImplementedError("this torch has no product of 8-bit integers")
    second = b.t() if a.is_cuda else b
    torch._int_mm(a, second)
    return lambda: torch._int_mm(a, second)
