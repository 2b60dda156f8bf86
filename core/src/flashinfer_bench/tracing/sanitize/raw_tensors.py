"""Single tensors of safetensors files as plain bytes and integers, without a tensor library."""

from __future__ import annotations

import hashlib
import json
import struct
from array import array
from typing import TYPE_CHECKING, NamedTuple, Optional

from flashinfer_bench.data.blobs import read_safetensors_header, resolve_blob
from flashinfer_bench.errors import BlobError, UnsafePathError

if TYPE_CHECKING:
    from pathlib import Path

    from flashinfer_bench.data.workload import SafetensorsInput

MOST_INTEGERS = 1 << 24
"""Longest tensor whose values are looked at (128 MB): offsets of a batch are far shorter."""

_INTEGERS = {"I32": "i", "I64": "q"}  # little-endian, as every machine that we run on
_CHUNK = 1 << 20


class _Place(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class RawTensors:
    """Reads tensors of one dataset. What cannot be read is None: `fib validate` tells of it.

    Parameters
    ----------
    root : Path
        The dataset.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[str, dict[str, _Place]] = {}

    def integers(self, spec: SafetensorsInput) -> Optional[list[int]]:
        """Return the values of a one-dimensional int32 or int64 tensor."""
        place = self._find(spec)
        if place is None or place.dtype not in _INTEGERS or len(place.shape) != 1:
            return None
        if place.shape[0] > MOST_INTEGERS:
            return None
        values = array(_INTEGERS[place.dtype])
        try:
            with resolve_blob(self._root, spec.path).open("rb") as file:
                file.seek(place.begin)
                values.frombytes(file.read(place.end - place.begin))
        except (OSError, ValueError):
            return None
        return values.tolist()

    def digest(self, spec: SafetensorsInput) -> Optional[str]:
        """Return what equal tensors have in common, whatever file they are in."""
        place = self._find(spec)
        if place is None:
            return None
        found = hashlib.blake2b(f"{place.dtype}{place.shape}".encode(), digest_size=16)
        try:
            with resolve_blob(self._root, spec.path).open("rb") as file:
                file.seek(place.begin)
                left = place.end - place.begin
                while left > 0 and (chunk := file.read(min(left, _CHUNK))):
                    found.update(chunk)
                    left -= len(chunk)
        except OSError:
            return None
        return found.hexdigest()

    def _find(self, spec: SafetensorsInput) -> Optional[_Place]:
        if spec.path not in self._files:
            self._files[spec.path] = self._places(spec.path)
        return self._files[spec.path].get(spec.tensor_key)

    def _places(self, name: str) -> dict[str, _Place]:
        try:
            path = resolve_blob(self._root, name)
            header = read_safetensors_header(path)
            return _with_offsets(path, header)
        except (BlobError, UnsafePathError, OSError):
            return {}


def _with_offsets(path: Path, header: dict[str, tuple[str, tuple[int, ...]]]) -> dict[str, _Place]:
    """Add where each tensor lies to what a header, which was checked, says of it."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        entries = json.loads(file.read(length))
    found = {}
    for key, (dtype, shape) in header.items():
        begin, end = entries[key]["data_offsets"]
        found[key] = _Place(dtype, shape, 8 + length + begin, 8 + length + end)
    return found
