"""The commands of this plugin, one module each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def counted(counts: Mapping[str, int]) -> str:
    """Return counts as ``2 definitions, 3 solutions``, without zeros."""
    return ", ".join(f"{count:,} {noun}" for noun, count in counts.items() if count) or "nothing"
