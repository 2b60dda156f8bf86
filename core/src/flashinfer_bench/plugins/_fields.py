"""Checks of single record fields: each returns the value as it is stored, or says what is wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Optional

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")
_DEVICE = re.compile(r"[a-z][a-z0-9_]*")


def text(owner: str, field: str, value: object) -> str:
    """Return `value` if it is a string."""
    if not isinstance(value, str):
        raise TypeError(f"{owner}: {field} must be a string, not {type(value).__name__}")
    return value


def line(owner: str, field: str, value: object) -> str:
    """Return `value`, a string of at most one line, without surrounding blanks."""
    stripped = text(owner, field, value).strip()
    if len(stripped.splitlines()) > 1:
        raise ValueError(f"{owner}: {field} must be a single line")
    return stripped


def name(owner: str, field: str, value: object) -> str:
    """Return `value` as a name: lower case, without surrounding blanks."""
    normalised = text(owner, field, value).strip().lower()
    if not _NAME.fullmatch(normalised):
        raise ValueError(
            f"{owner}: {field} may hold letters, digits, '.', '_' and '-', "
            "and starts and ends with a letter or digit"
        )
    return normalised


def import_path(owner: str, field: str, value: object) -> str:
    """Return `value` if it has the form ``package.module:Name``."""
    module, colon, attribute = text(owner, field, value).partition(":")
    parts = [*module.split("."), *attribute.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise ValueError(f"{owner}: {field} {value!r} is not of the form 'package.module:Name'")
    return f"{module}:{attribute}"


def integer(owner: str, field: str, value: object) -> int:
    """Return `value` if it is an int; True and False are not."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{owner}: {field} must be an int, not {type(value).__name__}")
    return value


def duration(owner: str, field: str, value: object) -> float:
    """Return `value`, a number of milliseconds above 0, as a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{owner}: {field} must be a number, not {type(value).__name__}")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{owner}: {field} must be finite and above 0, not {value!r}")
    return float(value)


def some_of(owner: str, field: str, value: object, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Return `value` as a tuple of at least one of the `allowed` words."""
    found = words(owner, field, value)
    for word in found:
        if word not in allowed:
            raise ValueError(f"{owner}: {field} holds {word!r}; allowed: {', '.join(allowed)}")
    return found


def words(owner: str, field: str, value: object, *, required: bool = True) -> tuple[str, ...]:
    """Return `value` as a tuple of non-empty strings; a lone string is not taken for one."""
    found = tuple(
        text(owner, f"each of {field}", word).strip() for word in _items(owner, field, value)
    )
    if required and not found:
        raise ValueError(f"{owner}: {field} must name at least one")
    if not all(found):
        raise ValueError(f"{owner}: {field} holds an empty string")
    return found


def flag(owner: str, field: str, value: object) -> bool:
    """Return `value` if it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{owner}: {field} must be True or False, not {value!r}")
    return value


def device_type(device: str) -> str:
    """Return the type of a device: ``cuda`` of ``cuda:1``."""
    return device.partition(":")[0].strip().lower()


def devices(owner: str, field: str, value: object, *, required: bool = True) -> tuple[str, ...]:
    """Return `value` as a tuple of device types, such as ``("cpu", "cuda")``."""
    found = tuple(device.lower() for device in words(owner, field, value, required=required))
    for device in found:
        if not _DEVICE.fullmatch(device):
            raise ValueError(
                f"{owner}: {field} holds {device!r}; write the type alone, 'cpu' or 'cuda'"
            )
    return found


def handles(owner: str, field: str, value: object) -> tuple[tuple[str, Optional[str]], ...]:
    """Return `value` as a tuple of (language, binding) pairs, in lower case."""
    found = tuple(_pair(owner, field, item) for item in _items(owner, field, value))
    if not found:
        raise ValueError(f"{owner}: {field} must hold at least one (language, binding)")
    return found


def matches(subject: str, patterns: Iterable[str]) -> bool:
    """Return whether `subject` matches one of the shell-style `patterns`."""
    return any(fnmatchcase(subject, pattern) for pattern in patterns)


def _items(owner: str, field: str, value: object) -> tuple[object, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"{owner}: {field} must be a tuple, not {type(value).__name__}")
    return tuple(value)


def _pair(owner: str, field: str, item: object) -> tuple[str, Optional[str]]:
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise TypeError(
            f"{owner}: {field} holds {item!r}; write pairs: ('python', None), ('cuda', 'torch')"
        )
    language = name(owner, f"the language in {field}", item[0])
    binding = item[1]
    if binding is None or binding == "*":
        return language, binding
    return language, name(owner, f"the binding in {field}", binding)
