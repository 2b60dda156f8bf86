"""Names that more than one distribution claims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flashinfer_bench.plugins import _messages as messages

if TYPE_CHECKING:
    from flashinfer_bench.plugins.registered import Registered


@dataclass(frozen=True)
class Conflict:
    """Records of one kind and name, all of them refused.

    Parameters
    ----------
    kind, name : str
        What they all claim.
    claims : tuple of Registered
        The records, in the order in which they were registered.
    """

    kind: str
    name: str
    claims: tuple[Registered[Any], ...]

    def sentence(self) -> str:
        """Return who claims what, and that none of them is used."""
        return messages.conflict(self.kind, self.name, [claim.origin for claim in self.claims])
