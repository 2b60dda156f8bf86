"""What became of each plugin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "unavailable", "blocked", "broken"]


@dataclass(frozen=True, kw_only=True)
class PluginStatus:
    """One plugin, and what became of it.

    Parameters
    ----------
    name : str
        Name of the entry point; for a module of ``FIB_PLUGINS``, the module; ``core`` for core.
    distribution, version : str
        What it was installed with. Empty for a module of ``FIB_PLUGINS``.
    target : str
        What was loaded: ``package.module`` or ``package.module:object``.
    state : str
        ``ok``; ``unavailable``: it loaded, but no record of it can be used on this machine;
        ``blocked``: the user asked not to load it; ``broken``: something about it is wrong, and
        some or all of its records are left out.
    reason : str
        Why the state is not ``ok``, so that it reads on after the plugin's name.
    traceback : str
        Where it raised, if it did.
    records : tuple of (str, str)
        Kind and name of the records that it contributes.
    load_ms : float
        Milliseconds that loading it and calling its hooks took.
    heavy_imports : tuple of str
        Heavy libraries that loading it imported, which no plugin should.
    """

    name: str
    distribution: str = ""
    version: str = ""
    target: str = ""
    state: State = "ok"
    reason: str = ""
    traceback: str = ""
    records: tuple[tuple[str, str], ...] = ()
    load_ms: float = 0.0
    heavy_imports: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """Distribution and version, or the plugin's name where there is no distribution."""
        return f"{self.distribution} {self.version}".strip() or self.name

    def sentence(self) -> str:
        """Return origin and reason as a sentence: ``Plugin fib-x 0.1 failed to load: …``."""
        return f"Plugin {self.origin} {self.reason or 'is ' + self.state}"
