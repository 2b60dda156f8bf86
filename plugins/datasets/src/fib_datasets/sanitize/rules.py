"""Reasons why a workload is useless for benchmarks."""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from array import array
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Optional

from fib_datasets.repair.examine import where
from fib_datasets.tensor_headers import tensor_places
from flashinfer_bench.data import SafetensorsInput, ScalarInput, parse_constraint, resolve_blob
from flashinfer_bench.errors import BlobError, DataError, UnsafePathError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flashinfer_bench.data import Definition, Workload

    _Integers = dict[str, list[int]]
    _Reasons = Iterator[tuple["Reason", str]]


class Reason(str, Enum):
    """Why something is removed."""

    DUPLICATE = "duplicate"
    """A workload with the same axes and inputs, tensors included, as an earlier one."""

    ZERO_AXIS = "zero_axis"
    """A variable axis is 0, so there is nothing to compute."""

    NOT_FINITE = "not_finite"
    """A scalar is infinite or NaN."""

    BAD_INDPTR = "bad_indptr"
    """Offsets of a ragged batch that do not start at 0, or that decrease."""

    EMPTY_BATCH = "empty_batch"
    """Every sequence of the batch has length 0."""

    CONSTRAINT = "constraint"
    """A constraint of the definition is violated."""

    OUTSIZED = "outsized"
    """It exceeds a given limit."""

    TRACE = "trace"
    """A trace of a removed workload."""

    UNUSED_BLOB = "unused_blob"
    """An unused tensor file."""


@dataclass(frozen=True)
class Finding:
    """One line or file to remove.

    Parameters
    ----------
    kind : Reason
        The reason.
    path : Path
        The file, relative to the dataset.
    message : str
        The reason in words.
    line : int, optional
        Line in the file, from 1; None for the file itself, or a JSON document over several lines.
    definition, uuid : str
        The workload; empty for a file.
    traces : int
        Number of traces of the workload that do not refer to an equal one that is kept.
    """

    kind: Reason
    path: Path
    message: str
    line: Optional[int] = None
    definition: str = ""
    uuid: str = ""
    traces: int = 0

    @property
    def where(self) -> str:
        """The place as ``file:line``."""
        return where(self.path, self.line)


@dataclass(frozen=True)
class Limits:
    """The largest allowed workload; None for no limit.

    Parameters
    ----------
    max_bytes : int, optional
        Bytes of all inputs and outputs together.
    max_elements : int, optional
        Elements of the largest input or output.
    """

    max_bytes: Optional[int] = None
    max_elements: Optional[int] = None


MOST_INTEGERS = 1 << 24
"""Longest tensor whose values are read (128 MB); offsets of batches are far shorter."""

_INTEGERS = {"I32": "i", "I64": "q"}  # little-endian, as on all supported machines
_CHUNK = 1 << 20


class RawTensors:
    """Reads tensors of a dataset; returns None for unreadable ones, which `fib validate` reports.

    Parameters
    ----------
    root : Path
        The dataset.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[str, dict[str, tuple[str, tuple[int, ...], int, int]]] = {}

    def integers(self, spec: SafetensorsInput) -> Optional[list[int]]:
        """Return the values of a one-dimensional int32 or int64 tensor."""
        dtype, shape, *_ = self._place(spec) or ("", ())
        if dtype not in _INTEGERS or len(shape) != 1 or shape[0] > MOST_INTEGERS:
            return None
        values = array(_INTEGERS[dtype])
        try:
            values.frombytes(b"".join(self._read(spec)))
        except (OSError, ValueError):
            return None
        return values.tolist()

    def digest(self, spec: SafetensorsInput) -> Optional[str]:
        """Return a digest of the type, shape and content of a tensor."""
        place = self._place(spec)
        if place is None:
            return None
        dtype, shape, *_ = place
        found = hashlib.blake2b(f"{dtype}{shape}".encode(), digest_size=16)
        try:
            for chunk in self._read(spec):
                found.update(chunk)
        except OSError:
            return None
        return found.hexdigest()

    def _read(self, spec: SafetensorsInput) -> Iterator[bytes]:
        *_, begin, end = self._files[spec.path][spec.tensor_key]
        with resolve_blob(self._root, spec.path).open("rb") as file:
            file.seek(begin)
            left = end - begin
            while left > 0 and (chunk := file.read(min(left, _CHUNK))):
                yield chunk
                left -= len(chunk)

    def _place(self, spec: SafetensorsInput) -> Optional[tuple[str, tuple[int, ...], int, int]]:
        if spec.path not in self._files:
            self._files[spec.path] = {}
            with contextlib.suppress(BlobError, UnsafePathError, OSError):
                self._files[spec.path] = tensor_places(resolve_blob(self._root, spec.path))
        return self._files[spec.path].get(spec.tensor_key)


# Names of offsets and lengths of ragged batches in definitions.
_OFFSETS = re.compile(r"(^|_)(indptr|cu_seq_?lens?)(_|$)")
_LENGTHS = re.compile(r"(^|_)seq_?lens?(_|$)")
_ITEM = re.compile(r"\b([A-Za-z_]\w*)\[(-?\d+)\]\.item\(\)")


def judge(
    definition: Definition, workload: Workload, tensors: RawTensors, limits: Limits
) -> Optional[tuple[Reason, str]]:
    """Return why a workload is useless, or None if it is not.

    Parameters
    ----------
    definition : Definition
        Its definition.
    workload : Workload
        The workload.
    tensors : RawTensors
        Reads its stored one-dimensional integer inputs, as far as rules need them.
    limits : Limits
        The largest allowed workload.
    """
    integers = {}
    for name, spec in workload.inputs.items():
        if isinstance(spec, SafetensorsInput) and _matters(definition, name):
            values = tensors.integers(spec)
            if values is not None:
                integers[name] = values
    return next(_reasons(definition, workload, integers, limits), None)


def _matters(definition: Definition, name: str) -> bool:
    if _OFFSETS.search(name) or _LENGTHS.search(name):
        return True
    return any(
        name == found[1] for text in definition.constraints for found in _ITEM.finditer(text)
    )


def _reasons(
    definition: Definition, workload: Workload, integers: _Integers, limits: Limits
) -> _Reasons:
    zero = [name for name in definition.var_axes if workload.axes.get(name) == 0]
    if zero:
        yield Reason.ZERO_AXIS, f"{', '.join(zero)} = 0"
    for name, spec in workload.inputs.items():
        value = spec.value if isinstance(spec, ScalarInput) else 0
        if isinstance(value, float) and not math.isfinite(value):
            yield Reason.NOT_FINITE, f"{name} = {value}"
    offsets = {name: one for name, one in integers.items() if _OFFSETS.search(name)}
    for name, values in offsets.items():
        if values and values[0] != 0:
            yield Reason.BAD_INDPTR, f"{name} starts at {values[0]}, not at 0"
        for place, (one, two) in enumerate(pairwise(values), 1):
            if two < one:
                yield Reason.BAD_INDPTR, f"{name} decreases from {one} to {two} at {place}"
    for name, values in offsets.items():
        if len(values) > 1 and values[-1] == 0:
            yield Reason.EMPTY_BATCH, f"all {len(values) - 1} sequences of {name} are empty"
    for name, values in integers.items():
        if _LENGTHS.search(name) and name not in offsets and values and not any(values):
            yield Reason.EMPTY_BATCH, f"all {len(values)} lengths of {name} are 0"
    yield from _violated(definition, workload.axes, integers)
    yield from _outsized(definition, workload.axes, limits)


def _violated(definition: Definition, axes: dict[str, int], integers: _Integers) -> _Reasons:
    def value(found: re.Match[str]) -> str:
        """Return an element of a stored tensor; the text itself if the tensor is not stored."""
        values = integers.get(found[1])
        try:
            return found[0] if values is None else str(values[int(found[2])])
        except IndexError:
            return found[0]

    axes = {**axes, **definition.const_axes}
    for text in definition.constraints:
        try:
            parsed = parse_constraint(_ITEM.sub(value, text))
            if not parsed.decidable(axes) or parsed.evaluate(axes):
                continue
        except DataError:  # unknown
            continue
        names = parse_constraint(text).names
        values = ", ".join(f"{name}={axes[name]}" for name in axes if name in names)
        yield Reason.CONSTRAINT, f"'{text}' is violated ({values})"


def _outsized(definition: Definition, axes: dict[str, int], limits: Limits) -> _Reasons:
    if limits == Limits():
        return
    try:
        shapes = *definition.get_input_shapes(axes), *definition.get_output_shapes(axes)
    except DataError:  # an axis without a value
        return
    specs = *definition.inputs.values(), *definition.outputs.values()
    elements = [math.prod(shape or ()) for shape in shapes]
    total = sum(spec.dtype.nbytes(count) for spec, count in zip(specs, elements, strict=True))
    largest = max(elements, default=0)
    if limits.max_bytes is not None and total > limits.max_bytes:
        yield Reason.OUTSIZED, f"{total:,} bytes; at most {limits.max_bytes:,} are allowed"
    if limits.max_elements is not None and largest > limits.max_elements:
        allowed = f"at most {limits.max_elements:,} are allowed"
        yield Reason.OUTSIZED, f"a tensor of {largest:,} elements; {allowed}"
