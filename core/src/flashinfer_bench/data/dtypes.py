"""The element types of tensors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Optional

from flashinfer_bench.data.base import NameEnum

if TYPE_CHECKING:
    import torch

_FIXED_NAMES = {"float4_e2m1": "float4_e2m1fn_x2"}


class DType(NameEnum):
    """Element type of a tensor; a member equals its name as a string."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"
    FLOAT4_E2M1 = "float4_e2m1"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    BOOL = "bool"

    @classmethod
    def _missing_(cls, value: object) -> Optional[DType]:
        return cls.FLOAT8_E4M3FN if value == "float8_e4m3" else None  # the name of 2025-07

    @property
    def itemsize_bits(self) -> int:
        """Bits of one element: 4 for ``float4_e2m1``, 8 for ``bool``."""
        found = re.search(r"\d+", self.value)
        return int(found[0]) if found else 8

    @property
    def is_floating(self) -> bool:
        """Whether elements are floating-point numbers."""
        return "float" in self.value

    @property
    def is_integer(self) -> bool:
        """Whether elements are integers; ``bool`` is not one."""
        return self.value.startswith("int")

    @property
    def torch_name(self) -> str:
        """Name of the type in ``torch``, which packs two ``float4_e2m1`` into a byte."""
        return _FIXED_NAMES.get(self.value, self.value)

    def to_torch(self) -> torch.dtype:
        """Return the type of torch.

        Raises
        ------
        CapabilityError
            If torch is not installed, or is too old to know the type.
        """
        from flashinfer_bench.errors import CapabilityError

        try:
            import torch
        except ImportError as error:
            raise CapabilityError(
                f"dtype '{self}' was asked for as a torch type, but torch is not installed",
                hint="pip install 'flashinfer-bench-core[torch]'",
            ) from error
        found = getattr(torch, self.torch_name, None)
        if not isinstance(found, torch.dtype):
            problem = f"torch {torch.__version__} has no dtype '{self.torch_name}'"
            raise CapabilityError(problem, hint="update torch")
        return found
