"""What value-returning functions return, as torch knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def returning_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with results turned into what Python and torch have for them.

    TVM FFI returns a tensor that was made by its environment's allocator as a torch tensor, but
    wraps collections: its arrays and tuples become tuples here, its maps dicts, and tensors that it
    left as its own become torch tensors that share their memory.

    Parameters
    ----------
    function : callable
        An exported function.
    """
    import torch

    plain = torch.Tensor

    def call(*args: Any) -> Any:
        result = function(*args)
        # The common case, ahead of all that needs a look-up.
        return result if type(result) is plain else to_torch(result)

    return call


def to_torch(value: Any) -> Any:
    """Return a result of a TVM FFI function as torch tensor, tuple, dict, or as it is."""
    import tvm_ffi
    from torch.utils.dlpack import from_dlpack

    if isinstance(value, tvm_ffi.Tensor):
        return from_dlpack(value)
    if isinstance(value, (tvm_ffi.Array, tvm_ffi.List)):
        return tuple(to_torch(member) for member in value)
    if isinstance(value, (tvm_ffi.Map, tvm_ffi.Dict)):
        return {str(name): to_torch(member) for name, member in value.items()}
    return value
