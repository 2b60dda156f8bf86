"""Samples of a latency as one short text: ``f32:`` and their bytes in Base64.

A list of numbers takes twice the room in a trace. The bytes are IEEE 754 single-precision numbers,
least significant byte first: 24 bits tell a nanosecond in 16 ms, which no clock does any better.
What is stored is what was measured, rounded by `rounded`; a median over the stored samples is
exactly the latency of the trace.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
import sys
from array import array
from typing import TYPE_CHECKING, Any, Optional, Union

if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX = "f32:"
_BYTES = 4


def rounded(values: Iterable[float]) -> tuple[float, ...]:
    """Return `values` as they can be stored: each the nearest single-precision number.

    Raises
    ------
    OverflowError
        If one is larger than any such number: 3.4e38.
    """
    given = tuple(values)
    return struct.unpack(f"<{len(given)}f", struct.pack(f"<{len(given)}f", *given))


def packed(values: list[float]) -> Union[str, list[float]]:
    """Return the text for some samples, or the samples where a text could not hold them exactly."""
    form = f"<{len(values)}f"
    try:
        raw = struct.pack(form, *values)
    except OverflowError:
        return values
    if struct.unpack(form, raw) != tuple(values):
        return values
    return PREFIX + base64.b64encode(raw).decode("ascii")


def unpacked(text: str) -> list[float]:
    """Return the samples that a text holds.

    Raises
    ------
    ValueError
        If it holds none that `packed` could have written.
    """
    if not text.startswith(PREFIX):
        raise ValueError(f"samples are a list of numbers, or a text that begins with {PREFIX!r}")
    try:
        raw = base64.b64decode(text[len(PREFIX) :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"samples are not in Base64: {error}") from error
    if len(raw) % _BYTES:
        raise ValueError(f"{len(raw)} bytes of samples are no whole number of samples")
    values = array("f", raw)
    if sys.byteorder == "big":
        values.byteswap()
    if values and not (
        min(values) >= 0 and math.isfinite(sum(values))
    ):  # no NaN, whatever min says
        raise ValueError("a sample is a number of milliseconds that is finite and not negative")
    return values.tolist()


def from_json(value: Any) -> Any:
    """Return a field as a list where it is a text; everything else is for the field to judge."""
    return unpacked(value) if isinstance(value, str) else value


def dropped_numbers(rows: Optional[Iterable[tuple[int, int]]], count: int) -> set[int]:
    """Return which of `count` samples lie in some rows, whatever these overlap or exceed.

    Parameters
    ----------
    rows : iterable of (int, int), optional
        First number of each row and the one after its last, as ``performance.dropped`` has them.
    count : int
        How many samples there are.
    """
    return {number for first, end in rows or () for number in range(first, min(end, count))}
