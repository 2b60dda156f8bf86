"""A plugin's module that imports what it does not need."""

from __future__ import annotations

import numpy  # noqa: F401
