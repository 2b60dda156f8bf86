"""Test classes for cases."""

import pytest


def suites_of(cases):
    """Return a test class for each pair of a suite and a case, by name."""
    return {f"Test{name}": _suite_of(*pair) for name, pair in cases.items()}


def _suite_of(suite, given):
    class Suite(suite):
        @pytest.fixture
        def case(self):
            return given

    return Suite
