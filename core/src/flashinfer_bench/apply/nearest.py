"""The recorded key that is nearest to one that was never recorded."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from fractions import Fraction
from math import isinf, prod
from typing import TYPE_CHECKING, NamedTuple, Optional

from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flashinfer_bench.apply.keys import ApplyKey, Feature

    Sizes = tuple[int, ...]
    Kind = tuple[tuple[str, ...], tuple[tuple[str, Feature], ...]]


class _Group(NamedTuple):
    """Keys of one kind, sorted by the size of one axis."""

    axis: int  # its place among the axes; -1 if there are none
    along: list[int]
    keys: list[ApplyKey]


class NearestKeys:
    """Keys, made ready for many searches for near ones.

    A key is near if it has the same axes and the same features, and each axis differs by a factor
    of at most `ratio`. Only 0 is near to a size of 0. The nearest has the smallest product of these
    factors, that is, the smallest sum of distances on logarithmic scales; of equals it is the one
    with the smaller sizes, axis by axis. The order in which keys are given does not matter.

    Parameters
    ----------
    keys : iterable of ApplyKey
        Those that were recorded. Of a mapping, its keys.
    """

    def __init__(self, keys: Iterable[ApplyKey]) -> None:
        kinds: defaultdict[Kind, list[ApplyKey]] = defaultdict(list)
        for key in keys:
            kinds[_kind(key)].append(key)
        self._groups = {kind: _group(members) for kind, members in kinds.items()}

    def find(self, key: ApplyKey, ratio: float) -> Optional[ApplyKey]:
        """Return the key that is nearest to `key`, which is an equal one if there is one.

        Parameters
        ----------
        key : ApplyKey
            That of a call.
        ratio : float
            Factor by which an axis may differ, at least 1; 1 allows equal sizes only.

        Returns
        -------
        ApplyKey or None
            None if no key is near.

        Raises
        ------
        ConfigError
            If `ratio` is less than 1, or NaN.
        """
        if not ratio >= 1:
            raise ConfigError(f"nearest_ratio={ratio!r} is not allowed; give a number from 1 on")
        group = self._groups.get(_kind(key))
        if group is None:
            return None
        limit = None if isinf(ratio) else Fraction(ratio)  # exact: no two sizes are near by chance
        wanted = _sizes(key)
        near = [each for each in _candidates(group, wanted, limit) if _near(wanted, each, limit)]
        return min(near, key=lambda each: _rank(wanted, each), default=None)


def nearest_choice(keys: Iterable[ApplyKey], key: ApplyKey, ratio: float) -> Optional[ApplyKey]:
    """Return the one of `keys` that is nearest to `key`, or None; see `NearestKeys`.

    Parameters
    ----------
    keys : iterable of ApplyKey
        Those that were recorded, such as the mapping of choices of a table.
    key : ApplyKey
        That of a call.
    ratio : float
        Factor by which an axis may differ, at least 1.

    Raises
    ------
    ConfigError
        If `ratio` is not allowed.
    """
    return NearestKeys(keys).find(key, ratio)


def _kind(key: ApplyKey) -> Kind:
    return tuple([axis for axis, _ in key.axes]), key.feats


def _sizes(key: ApplyKey) -> Sizes:
    return tuple([size for _, size in key.axes])


def _group(keys: list[ApplyKey]) -> _Group:
    """Sort keys by the axis that tells most of them apart: a search then looks at few."""
    columns = list(zip(*map(_sizes, keys), strict=True))
    if not columns:
        return _Group(-1, [0] * len(keys), keys)
    axis = max(range(len(columns)), key=lambda each: len(set(columns[each])))
    keys = sorted(keys, key=lambda key: _sizes(key)[axis])
    return _Group(axis, [_sizes(key)[axis] for key in keys], keys)


def _candidates(group: _Group, wanted: Sizes, limit: Optional[Fraction]) -> list[ApplyKey]:
    if limit is None or group.axis < 0:
        return group.keys
    size = wanted[group.axis]
    first = bisect_left(group.along, size * limit.denominator // limit.numerator)
    last = bisect_right(group.along, size * limit.numerator // limit.denominator)
    return group.keys[first:last]


def _near(wanted: Sizes, key: ApplyKey, limit: Optional[Fraction]) -> bool:
    for one, other in zip(wanted, _sizes(key), strict=True):
        small, large = min(one, other), max(one, other)
        if small == 0 and large > 0:
            return False
        if limit is not None and large * limit.denominator > small * limit.numerator:
            return False
    return True


def _rank(wanted: Sizes, key: ApplyKey) -> tuple[Fraction, Sizes]:
    """Return what the nearest key has the least of."""
    sizes = _sizes(key)
    pairs = [pair for pair in zip(wanted, sizes, strict=True) if any(pair)]
    return Fraction(prod(map(max, pairs)), prod(map(min, pairs))), sizes
