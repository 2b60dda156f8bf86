"""Where outputs are wrong, and by which simple relation they follow from the right ones.

Everything here is computed from CPU tensors alone. An element is wrong if it does not pass by the
rule of `flashinfer_bench.bench.correctness.compare`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from flashinfer_bench.bench import correctness
from flashinfer_bench.bench.correctness import errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy
    import torch

MOST_RANGES = 8
MOST_DIMENSIONS = 6
_DENSE = 0.8  # of a block: with loose tolerances some wrong elements pass by chance
_LONGEST_PERIOD = 64
_SMALLEST_BLOCK = 4
_PIECE = 1 << 22
_MOST_RELATED = 1 << 22  # elements of an output that are related to the expected ones
_SEVERAL = 8  # elements for each fitted number


@dataclass(frozen=True)
class Dimension:
    """Where an output is wrong along one dimension.

    Attributes
    ----------
    axis : str
        Name of the axis in the definition; empty if it has none.
    size : int
        Its size.
    wrong : int
        Number of indices at which some element is wrong.
    ranges : tuple of (int, int)
        These indices as ranges ``[first, end)``, at most 8; of more, those closest to each other
        are merged.
    pattern : str
        ``all``, ``first`` or ``last`` (one index), ``head``, ``tail`` or ``block`` (neighbouring
        indices), ``periodic``, or ``scattered``.
    block : int
        For ``tail`` and ``last``: the largest power of two, at least 4, of which the first wrong
        index is the last multiple below the size; 0 if there is none. For ``periodic``: the period.
    """

    axis: str
    size: int
    wrong: int
    ranges: tuple[tuple[int, int], ...]
    pattern: str
    block: int = 0

    @property
    def text(self) -> str:
        """The pattern in words; empty if all indices are concerned."""
        name = f"axis {self.axis!r}" if self.axis else "a dimension"
        first, end = self.ranges[0][0], self.ranges[-1][1]
        if self.pattern == "all" or self.wrong >= _DENSE * self.size:
            return ""
        if self.pattern == "scattered":
            return f"{self.wrong:,} of {self.size:,} indices of {name}"
        if self.pattern == "periodic":
            return f"indices {first}, {first + self.block}, … of {name} (period {self.block})"
        text = f"indices {first} to {end - 1} of {name} (size {self.size})"
        if self.block and self.pattern in ("tail", "last"):
            text += f", beyond the last multiple of {self.block}"
        return text


@dataclass(frozen=True)
class MismatchMap:
    """Where one output is wrong.

    Attributes
    ----------
    elements, wrong : int
        Number of elements, and of those that are wrong. Parts of a complex number count singly.
    nan, inf : int
        Wrong elements that are NaN or ±inf, where the expected ones are not the same.
    dimensions : tuple of Dimension
        For each dimension, the outermost first; at most 6.
    where : str
        A summary in words.
    """

    elements: int
    wrong: int
    nan: int
    inf: int
    dimensions: tuple[Dimension, ...]
    where: str


class Relation(NamedTuple):
    """A simple relation by which an output follows from the expected one, or from an input.

    Attributes
    ----------
    kind : str
        Name of the relation, such as ``scaled``.
    value : float
        Its parameter, such as the factor; NaN if it has none.
    text : str
        The relation in words.
    """

    kind: str
    value: float
    text: str


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with an element for each number: complex and float4 are taken apart.

    float8 becomes float32, which the CPU can compare.
    """
    import torch

    tensor = correctness.plain(tensor)
    is_float8 = tensor.is_floating_point() and tensor.element_size() == 1
    return tensor.to(torch.float32) if is_float8 else tensor


def passes(
    actual: torch.Tensor, expected: torch.Tensor, *, atol: float, rtol: float
) -> torch.Tensor:
    """Return which elements pass, by the rule of `flashinfer_bench.bench.correctness.compare`.

    Parameters
    ----------
    actual, expected : torch.Tensor
        CPU tensors of one shape.
    atol, rtol : float
        Tolerances of floating-point outputs.

    Returns
    -------
    torch.Tensor
        Of bool. For complex numbers with a last dimension for both parts; for float4 with one
        element for each number.
    """
    import torch

    left, right = plain(actual), plain(expected)
    passed = [_passes(one, other, atol, rtol) for one, other in _pieces(left, right)]
    return torch.cat(passed).view(left.shape)


def _pieces(left: torch.Tensor, right: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield both sides piece by piece: in float64 large outputs would take eight times as much."""
    rows: Iterator[Any] = (one.reshape(-1) for one in (left, right))
    return zip(*(one.split(_PIECE) for one in rows), strict=True)


def _passes(left: torch.Tensor, right: torch.Tensor, atol: float, rtol: float) -> torch.Tensor:
    same = equal(left, right)
    if not left.is_floating_point():
        return same
    absolute, relative = errors(left, right)
    finite = left.isfinite() & right.isfinite()
    return ((absolute <= atol) | (relative <= rtol)) & finite | same


def equal(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return which elements of plain tensors are equal; NaN equals NaN."""
    return (left == right) | ((left != left) & (right != right))


def map_mismatch(
    actual: torch.Tensor,
    expected: torch.Tensor,
    *,
    atol: float,
    rtol: float,
    axes: Sequence[str] = (),
) -> MismatchMap:
    """Return where an output is wrong.

    Parameters
    ----------
    actual, expected : torch.Tensor
        CPU tensors of one shape.
    atol, rtol : float
        Tolerances of floating-point outputs.
    axes : sequence of str
        Names of the axes, for the words of the result.
    """
    wrong, left = ~passes(actual, expected, atol=atol, rtol=rtol), plain(actual)
    nan, inf = (int((wrong & odd).sum()) for odd in (left.isnan(), left.isinf()))
    total = int(wrong.sum())
    names = [*axes, *[""] * wrong.ndim]
    found = []
    for dim in range(min(wrong.ndim, MOST_DIMENSIONS)) if total else ():
        marks = wrong.movedim(dim, 0).reshape(wrong.shape[dim], -1).any(1)
        found.append(_dimension(marks.numpy(), names[dim]))
    where = _in_words(total, left.numel(), nan, inf, found)
    return MismatchMap(left.numel(), total, nan, inf, tuple(found), where)


def _in_words(total: int, elements: int, nan: int, inf: int, found: Sequence[Dimension]) -> str:
    if not total:
        return "nowhere"
    texts = [one.text for one in found if one.text]
    where = "; ".join(texts) if texts else "all indices of all dimensions are concerned"
    if total == elements:
        where = "all elements are wrong"
    odd = [f"{count:,} are {name}" for count, name in ((nan, "NaN"), (inf, "inf")) if count]
    return "; ".join([where, *odd])


def _dimension(marks: numpy.ndarray[Any, Any], axis: str) -> Dimension:
    import numpy

    size, places = len(marks), numpy.flatnonzero(marks)
    ranges = _ranges(places)
    first, end = int(places[0]), int(places[-1]) + 1
    is_dense = len(places) >= _DENSE * (end - first)
    pattern, block = "scattered", 0
    if len(places) == size:
        pattern = "all"
    elif is_dense and end == size and first:
        pattern, block = "last" if first == size - 1 else "tail", _block(first, size)
    elif is_dense and end - first < size:
        pattern = "block" if first else "first" if end == 1 else "head"
    elif period := _period(marks):
        pattern, block = "periodic", period
    return Dimension(axis, size, len(places), ranges, pattern, block)


def _ranges(places: numpy.ndarray[Any, Any]) -> tuple[tuple[int, int], ...]:
    import numpy

    gaps = numpy.diff(places)
    breaks = numpy.flatnonzero(gaps > 1)
    if len(breaks) >= MOST_RANGES:  # keep the largest gaps
        widest = numpy.argsort(gaps[breaks], kind="stable")[-(MOST_RANGES - 1) :]
        breaks = numpy.sort(breaks[widest])
    starts = [places[0], *places[breaks + 1]]
    ends = [*places[breaks], places[-1]]
    return tuple((int(one), int(other) + 1) for one, other in zip(starts, ends, strict=True))


def _block(first: int, size: int) -> int:
    block = 1 << (size.bit_length() - 1)
    while block >= _SMALLEST_BLOCK:
        if size % block and size // block * block == first:
            return block
        block //= 2
    return 0


def _period(marks: numpy.ndarray[Any, Any]) -> int:
    """Return the smallest period for which a residue is wrong throughout, and others nowhere."""
    size = len(marks)
    for period in range(2, min(_LONGEST_PERIOD, size // 3) + 1):
        sums = [marks[start::period].mean() for start in range(period)]
        if all(share == 0 or share >= _DENSE for share in sums) and 0 in sums:
            return period
    return 0


# ------------------------------------------------------------------------------- relations


def distance(actual: torch.Tensor, predicted: torch.Tensor) -> float:
    """Return the relative distance of two tensors: ``|a - p| / |a|`` in the Euclidean norm.

    Elements that are NaN or ±inf in both in the same way do not count; inf if others are.
    """
    import torch

    above = below = 0.0
    for one, other in _pieces(plain(actual), plain(predicted)):
        left, right = one.to(torch.float64), other.to(torch.float64)
        apart = left - right
        odd = ~apart.isfinite()
        if bool(odd.any()):
            if not bool(equal(left, right)[odd].all()):
                return math.inf
            apart, left = apart.masked_fill(odd, 0.0), left.masked_fill(odd, 0.0)
        above, below = math.hypot(above, float(apart.norm())), math.hypot(below, float(left.norm()))
    if below == 0.0 or not math.isfinite(above):
        return 0.0 if above == 0.0 else math.inf
    return above / below


def tightness(dtype: torch.dtype) -> float:
    """Return the relative distance up to which two computations of one output may be apart."""
    import torch

    eps = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
    return min(max(2e-3, 4 * eps), 0.1)


class Fit:
    """Compares predictions with an output, on which the expected one does not fit.

    Parameters
    ----------
    actual, expected : torch.Tensor
        CPU tensors of one shape. Of large ones the first rows count.
    """

    def __init__(self, actual: torch.Tensor, expected: torch.Tensor) -> None:
        self.limit = tightness(expected.dtype)
        self.actual, self.expected = (self._cropped(one) for one in (actual, expected))
        self.distance = distance(self.actual, self.expected)
        finite = self.expected[self.expected.isfinite()]
        #: Whether the expected values differ at all; else everything is a simple relation.
        self.varies = finite.numel() > 1 and float(finite.std()) > 1e-6 * float(finite.abs().max())
        self.is_float = expected.dtype.is_floating_point

    @staticmethod
    def _cropped(tensor: torch.Tensor) -> torch.Tensor:
        import torch

        one = plain(tensor)
        if one.numel() > _MOST_RELATED:
            rows = max(1, _MOST_RELATED * one.shape[0] // one.numel())
            one = one[:rows]
            one = one if one.numel() <= 4 * _MOST_RELATED else one.reshape(-1)[:_MOST_RELATED]
        return one.to(torch.float64)

    def explains(self, found: float) -> bool:
        """Return whether a distance is small, and much less than that of the expected output."""
        return found <= self.limit and 5 * found < self.distance

    def takes(self, predicted: torch.Tensor) -> bool:
        """Return whether a prediction explains the output, and much better than the expected one.

        A prediction that has the same value everywhere explains nothing.
        """
        one = self._cropped(predicted)
        if one.shape != self.actual.shape or not self.explains(distance(self.actual, one)):
            return False
        finite = one[one.isfinite()]
        return finite.numel() > 1 and bool((finite != finite[0]).any())


def relations(
    actual: torch.Tensor,
    expected: torch.Tensor,
    inputs: Optional[Mapping[str, Any]] = None,
) -> list[Relation]:
    """Return simple relations that explain a wrong output, the simplest first.

    Parameters
    ----------
    actual, expected : torch.Tensor
        CPU tensors of one shape.
    inputs : mapping of str to tensor, optional
        The inputs by name; other values are left out.

    Returns
    -------
    list of Relation
        ``constant``: one value everywhere; ``input``: equal to an input; ``transposed``,
        ``shifted`` and ``reordered``: the expected values at other places; ``repeated``: some of
        the expected rows, several times; ``negated``, ``scaled`` and ``offset``: by one number;
        ``row_scaled``, ``column_scaled``, ``row_offset`` and ``column_offset``: by a number for
        each index of all dimensions but the last, or of the last; ``clamped``; ``wrapped``:
        integers apart by a multiple of 256 or 65536. Empty if the output is right, or nothing fits.
    """
    if not expected.numel() or actual.shape != expected.shape:
        return []
    fit = Fit(actual, expected)
    if fit.distance == 0.0 or not fit.varies:
        return []
    flat = fit.actual.reshape(-1)
    if bool(flat.isfinite().all()) and not bool((flat != flat[0]).any()):
        value = float(flat[0])
        return [Relation("constant", value, f"every element is {value:.6g}")]
    same = [
        Relation("input", math.nan, f"the output equals input {name!r}")
        for name, one in (inputs or {}).items()
        if getattr(one, "shape", None) == actual.shape and fit.takes(one)
    ]
    return [*same, *_moved(fit), *_by_numbers(fit), *_limited(fit)]


def _moved(fit: Fit) -> Iterator[Relation]:
    expected = fit.expected
    if expected.ndim >= 2:
        turned = expected.transpose(-1, -2)
        square = expected.shape[-1] == expected.shape[-2]
        if fit.takes(turned if square else turned.reshape(expected.shape)):
            how = "with rows and columns exchanged"
            yield Relation("transposed", math.nan, f"the expected output {how}")
            return
    for dim, size in enumerate(expected.shape):
        for shift in (1, -1, 2, -2) if size >= _SEVERAL else ():
            rest = size - abs(shift)
            actual = fit.actual.narrow(dim, max(shift, 0), rest)
            if fit.explains(distance(actual, expected.narrow(dim, max(-shift, 0), rest))):
                text = f"the expected output moved by {shift} in dimension {dim}"
                yield Relation("shifted", shift, text)
                return
    yield from _reordered(fit)


def _reordered(fit: Fit) -> Iterator[Relation]:
    """Look for the rows, or columns, of the output among the expected ones."""
    import torch

    for dim in range(min(fit.expected.ndim, 3)):
        size = fit.expected.shape[dim]
        rest = fit.expected.numel() // max(size, 1)
        if size < 2 or rest < 2 * _SEVERAL or not bool(fit.actual.isfinite().all()):
            continue
        rows, wanted = (one.movedim(dim, 0).reshape(size, -1) for one in (fit.actual, fit.expected))
        generator = torch.Generator().manual_seed(1)
        # Rows are told apart by a random projection, then compared as a whole.
        mix = torch.randn(rest, generator=generator, dtype=torch.float64)
        keys, known = rows @ mix, wanted @ mix
        order = known.argsort()
        right = torch.searchsorted(known[order], keys).clamp(1, size - 1)
        near = torch.stack((order[right - 1], order[right]))
        nearest = near.gather(0, (known[near] - keys).abs().argmin(0, keepdim=True))[0]
        if not fit.explains(distance(rows, wanted[nearest])):
            continue
        different = len(set(nearest.tolist()))
        moved = int((nearest != torch.arange(size)).sum())
        text = f"{moved} of {size} slices of dimension {dim} are those of other indices"
        kind = "reordered" if different == size else "repeated"
        if different > 1:
            yield Relation(kind, float(different), text)
            return


def _by_numbers(fit: Fit) -> Iterator[Relation]:
    a, e = fit.actual, fit.expected
    finite = a.isfinite() & e.isfinite()
    if not bool(finite.all()) or a.numel() < _SEVERAL:
        return
    below = float((e * e).sum())
    factor = float((a * e).sum()) / below if below else math.nan
    if factor and math.isfinite(factor) and fit.takes(e * factor):
        if abs(factor + 1) < 0.01:
            yield Relation("negated", -1.0, "the expected output with the opposite sign")
        else:
            yield Relation("scaled", factor, f"the expected output times {factor:.6g}")
        return
    offset = float((a - e).mean())
    if fit.takes(e + offset):
        yield Relation("offset", offset, f"the expected output plus {offset:.6g}")
        return
    if a.ndim < 2:
        return
    rows, wanted = (one.reshape(-1, one.shape[-1]) for one in (a, e))
    for dim, name in ((1, "row"), (0, "column")):
        if rows.shape[dim] < _SEVERAL or rows.shape[1 - dim] < 2:
            continue
        squares = (wanted * wanted).sum(dim, keepdim=True)
        factors = (rows * wanted).sum(dim, keepdim=True) / squares.clamp(min=1e-300)
        offsets = (rows - wanted).mean(dim, keepdim=True)
        for kind, told, made, values in (
            ("scaled", "times a factor", wanted * factors, factors),
            ("offset", "plus a number", wanted + offsets, offsets),
        ):
            if fit.takes(made.reshape(a.shape)):
                mean = float(values.mean())
                text = f"the expected output {told}, its own for each {name} (mean {mean:.6g})"
                yield Relation(f"{name}_{kind}", mean, text)
                break


def _limited(fit: Fit) -> Iterator[Relation]:
    a, e = fit.actual, fit.expected
    if not fit.is_float:
        apart = (a - e)[a != e]
        for step in (65536.0, 256.0):
            if apart.numel() and bool((apart.remainder(step) == 0).all()):
                text = f"the wrong integers are apart from the right ones by multiples of {step:g}"
                yield Relation("wrapped", step, text)
                return
    if not bool(a.isfinite().all()):
        return
    low, high = float(a.min()), float(a.max())
    for value, ends in ((high, (None, high)), (low, (low, None)), (high, (low, high))):
        if int((a == value).sum()) >= 2 and fit.takes(e.clamp(*ends)):
            yield Relation("clamped", value, f"the expected output, limited at {value:.6g}")
            return


def grid_of(actual: torch.Tensor, expected: torch.Tensor) -> str:
    """Return the coarser type in which an output was computed, by the values that occur.

    Parameters
    ----------
    actual, expected : torch.Tensor
        CPU tensors of one shape.

    Returns
    -------
    str
        ``float8_e4m3fn``, ``bfloat16`` or ``float16`` if all elements of `actual` are values of
        that type, at least 16 are finite and not zero, and less than half of `expected` are; else
        empty.
    """
    import torch

    if not expected.dtype.is_floating_point or actual.dtype != expected.dtype:
        return ""
    left, right = (plain(one).reshape(-1)[:_MOST_RELATED] for one in (actual, expected))
    left, right = (one[one.isfinite() & (one != 0)] for one in (left, right))
    if left.numel() < 16:
        return ""
    eps = torch.finfo(expected.dtype).eps
    for name in ("float8_e4m3fn", "bfloat16", "float16"):
        coarse = getattr(torch, name)
        if torch.finfo(coarse).eps <= eps:
            continue
        shares = [float((one.to(coarse).to(one.dtype) == one).double().mean().nan_to_num())
                  for one in (left, right)]  # fmt: skip
        if shares[0] == 1.0 and shares[1] < 0.5:
            return name
    return ""
