"""What a trace tells of how its samples were taken, in lines that people read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST = 900
_UNITS = {"mhz": "MHz", "w": "W", "c": "°C", "percent": "%", "ms": "ms", "s": "s"}
_NAMES = {"sm": "SM clock", "idle sm": "SM clock when idle", "memory": "memory clock"}


def timing_lines(timing: Mapping[str, Any]) -> str:
    """Return the outcome of the stopping rule, and a line for each watcher; empty if not told.

    Parameters
    ----------
    timing : mapping
        As ``provenance.timing`` of a trace; whatever is in it, a text comes out.
    """
    lines = []
    for name in ("ended_by", "outcome"):
        told = timing.get(name)
        if isinstance(told, str) and told:
            lines.append(f"{'ended by' if name == 'ended_by' else name}: {told}")
    watched = timing.get("watched")
    for name, facts in (watched if isinstance(watched, dict) else {}).items():
        if isinstance(facts, dict):
            told = "; ".join(_fact(*item) for item in facts.items() if item[0] != "readings")
            lines.append(f"{name}: {told}")
        else:
            lines.append(_fact(name, facts))
    text = "\n".join(lines)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _fact(key: object, value: Any) -> str:
    name, unit = _named(str(key))
    if isinstance(value, dict):
        states = [f"{_label(state)} {_share(part)}" for state, part in value.items()]
        return f"{name}: {', '.join(states)}"
    if isinstance(value, (list, tuple)) and len(value) == 3:  # smallest, median, greatest
        low, middle, high = map(str, value)
        value = middle if low == high else f"{middle} ({low} to {high})"
    return f"{name} {value}{f' {unit}' if unit else ''}"


def _named(key: str) -> tuple[str, str]:
    """Return the name of a fact in words, and its unit, which ends the key."""
    head, _, tail = key.rpartition("_")
    if head and tail in _UNITS:
        return _label(head), _UNITS[tail]
    return _label(key), ""


def _label(key: object) -> str:
    words = str(key).replace("_", " ")
    return _NAMES.get(words, words)


def _share(value: Any) -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:.0%}" if is_number and 0 <= value <= 1 else str(value)
