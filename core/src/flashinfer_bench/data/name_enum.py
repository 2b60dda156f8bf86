"""Lists of known names whose members are strings."""

from __future__ import annotations

from enum import Enum


class NameEnum(str, Enum):
    """A list of known names; a member equals its name as a string, and prints as it."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)
