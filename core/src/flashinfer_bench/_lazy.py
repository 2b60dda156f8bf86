"""Importing code by its name, as late as possible."""

from __future__ import annotations

import importlib
from typing import Any


def import_string(path: str) -> Any:
    """Import the object named by ``"package.module:Attribute"``.

    Parameters
    ----------
    path : str
        Module path and attribute, separated by a colon. The attribute may be dotted.

    Returns
    -------
    Any
        The object.

    Raises
    ------
    ValueError
        If `path` has no colon, or an empty side.
    ImportError
        If the module cannot be imported.
    AttributeError
        If the module has no such attribute.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ValueError(f"{path!r} is not of the form 'package.module:Attribute'")
    found: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found
