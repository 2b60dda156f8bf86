"""A library to be patched."""

from __future__ import annotations


def scale(x, factor=2.0):
    """Multiply."""
    return x * factor


class Wrapper:
    """Plans, then runs."""

    def plan(self, size):
        self.size = size

    def run(self, x):
        return x * self.size

    @staticmethod
    def version():
        return "1.0"

    @classmethod
    def make(cls, size):
        made = cls()
        made.plan(size)
        return made


class Derived(Wrapper):
    """Inherits everything."""


def __getattr__(name):
    if name == "lazy":
        return 3
    raise AttributeError(name)
