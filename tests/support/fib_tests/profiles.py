"""How many examples property tests take: few, unless ``FIB_TESTS_PROFILE=long`` asks for many."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# A busy machine is no failure, and fixtures that are shared by examples are meant to be.
_COMMON = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}
settings.register_profile("quick", max_examples=15, **_COMMON)
settings.register_profile("long", max_examples=200, **_COMMON)


def load() -> None:
    settings.load_profile(os.environ.get("FIB_TESTS_PROFILE", "quick"))
