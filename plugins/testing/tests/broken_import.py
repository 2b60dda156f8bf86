"""A plugin's module that cannot be imported."""

from __future__ import annotations

raise RuntimeError("toy is not for sale")
