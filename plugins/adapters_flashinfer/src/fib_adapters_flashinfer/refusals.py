"""Why runs of attention wrappers are of no definition: options, buffers, and what plans left.

Each check raises `UnroutableError` with a reason of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from fib_adapters_flashinfer.common import unit_scale
from flashinfer_bench.integration.routing import UnroutableError

if TYPE_CHECKING:
    import torch

    from fib_adapters_flashinfer.planned import Call, Shapes

# Options of a run, and what calls are counted under that give them. Any other option is new.
_OPTIONS = {
    "sinks": "attention sinks",
    "kv_cache_sf": "scales of a quantised kv cache",
    "skip_softmax_threshold_scale_factor": "skipping of softmax",
    "use_fp16_softmax": "half-precision softmax",
    "uses_spcompress": "compressed keys",
}
_SCALES = frozenset({"q_scale", "k_scale", "v_scale", "o_scale"})


def refuse_options(args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Refuse a run for what it was given beside its tensors, if that is anything.

    Parameters
    ----------
    args : tuple
        Arguments for kernels of the caller's own.
    options : dict
        By name; those that are None are not given.
    """
    if args:
        raise UnroutableError("arguments for a custom kernel")
    for name, value in options.items():
        if value is None or value is False:
            continue
        if name not in _SCALES:
            raise UnroutableError(_OPTIONS.get(name, "an option that is not known"))
        if not _does_nothing(value):
            raise UnroutableError(f"{name[0]} scale")


def refuse_scales(q_scale: Any, k_scale: Any, v_scale: Any) -> None:
    """Refuse a run for scales that are neither None nor 1."""
    if not _does_nothing(k_scale):
        raise UnroutableError("k scale")
    if not _does_nothing(v_scale):
        raise UnroutableError("v scale")
    if q_scale is not None and not _does_nothing(q_scale):
        raise UnroutableError("q scale")


def _does_nothing(scale: Any) -> bool:
    # Engines give these as numbers with each call.
    return scale == 1.0 if type(scale) is float else unit_scale(scale)


def refuse_standing(wrapper: Any, window_left: Optional[int] = None) -> None:
    """Refuse a run for what ``forward`` can change without a plan.

    Parameters
    ----------
    wrapper : Any
        The object that is run.
    window_left : int, optional
        What the run was given; None and -1 stand for no window.
    """
    if wrapper._window_left != -1 or not (window_left is None or window_left == -1):
        raise UnroutableError("sliding window")
    soft_cap = wrapper._logits_soft_cap
    if soft_cap is not None and soft_cap > 0:
        raise UnroutableError("logits soft cap")
    if wrapper._pos_encoding_mode != "NONE":
        raise UnroutableError("position encoding")


def refuse_prefill(wrapper: Any, lse_base: str, lse_layout: str) -> None:
    """Refuse a prefill that is not causal, or wants lse in another form than definitions have."""
    if not wrapper._causal:
        raise UnroutableError("not causal")
    if lse_base != "log2" or lse_layout != "NH":
        raise UnroutableError("form of lse")


def refuse_buffers(call: Call, shape: tuple[int, ...], dtype: torch.dtype, q: torch.Tensor) -> None:
    """Refuse a run whose buffers are none for its outputs: the original says what is wrong."""
    out, lse = call.out, call.lse
    if out is not None and (out.shape != shape or out.dtype is not dtype or out.device != q.device):
        raise UnroutableError("out buffer")
    if lse is None:
        return
    import torch

    if lse.shape != shape[:2] or lse.dtype is not torch.float32 or lse.device != q.device:
        raise UnroutableError("lse buffer")


def scale_of(wrapper: Any, shapes: Shapes) -> float:
    """Return what scores are multiplied by.

    Raises
    ------
    UnroutableError
        If that is no number: to read a tensor could mean to wait for the device.
    """
    scale = wrapper._sm_scale
    if scale is None:
        return shapes.sm_scale
    if type(scale) is float:
        return scale
    if not isinstance(scale, (int, float)):
        raise UnroutableError("sm_scale is no number")
    return float(scale)
