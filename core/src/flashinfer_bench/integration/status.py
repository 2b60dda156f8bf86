"""What became of each target of each adapter."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal[
    "patched", "waiting", "missing", "mismatch", "unroutable", "failed", "off", "unwanted"
]
"""What became of a target.

- ``patched``: calls go through the wrapper.
- ``waiting``: its library is not imported yet; it is patched when that happens.
- ``missing``: the library is imported, or not installed, and has no such function.
- ``mismatch``: the installed version of the library has it in a form that is not supported.
- ``unroutable``: its calls cannot be told in the inputs and outputs of a definition.
- ``failed``: it is there, and could not be patched.
- ``off``: its adapter, or everything, is turned off by the user.
- ``unwanted``: nothing is enabled that its calls could be of.
"""


@dataclass(frozen=True)
class PatchStatus:
    """What became of one target, and why.

    Parameters
    ----------
    path : str
        The target: ``"library.module.function"``.
    adapter : str
        The adapter whose target it is.
    state : str
        See `State`.
    reason : str
        Why it is not patched, or what is peculiar about it; empty if there is nothing to say.
    version : str
        Version of the installed library; empty if there is none, or it does not say.
    rebound : tuple of str
        Where else the original was found and replaced: ``"module.name"``.
    """

    path: str
    adapter: str
    state: State
    reason: str = ""
    version: str = ""
    rebound: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return asdict(self) | {"rebound": list(self.rebound)}
