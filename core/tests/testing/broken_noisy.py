"""A plugin's module that changes the process when it is imported."""

from __future__ import annotations

import os

os.environ["TOY_HOME"] = "."
