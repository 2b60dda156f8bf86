"""What takes the calls of definitions, in tests of how they are routed."""

from __future__ import annotations


class Runtime:
    """Takes calls of some definitions by one function, `call(args, kwargs, fallback)`."""

    def __init__(self, call, *names, definitions=()):
        self._call = call
        self._names = names
        self._definitions = dict(definitions)

    def names(self):
        return self._names

    def route(self, name, point):
        return self._call

    def definition(self, name):
        return self._definitions.get(name)

    def stop(self):
        raise NotImplementedError


def missing(args, kwargs, fallback):
    """Have the original answer."""
    return fallback(*args, **(kwargs or {}))
