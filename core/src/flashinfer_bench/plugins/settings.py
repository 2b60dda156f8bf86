"""What the user asked of discovery, read from the environment once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from flashinfer_bench import env
from flashinfer_bench.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How plugins are discovered.

    Parameters
    ----------
    no_plugins : bool
        Load no installed plugin; the `modules` are still loaded, so the two together give an
        exact set.
    disabled : tuple of str
        Plugins that are not loaded, by the name of the plugin or of its distribution.
    modules : tuple of str
        Modules (``package.module``, or ``package.module:object``) loaded as plugins without
        being installed as such.
    strict : bool
        Raise for a broken plugin, instead of setting it aside.
    probe_timeout_s : float
        Seconds that a probe may take.
    """

    no_plugins: bool = False
    disabled: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    strict: bool = False
    probe_timeout_s: float = 1.0

    @classmethod
    def from_env(cls) -> Settings:
        """Read the ``FIB_*`` variables.

        Returns
        -------
        Settings
            What they say.

        Raises
        ------
        ConfigError
            If one of them has a value that is not allowed.
        """
        try:
            return cls(
                no_plugins=env.no_plugins(),
                disabled=env.disabled_plugins(),
                modules=env.plugin_modules(),
                strict=env.strict_plugins(),
                probe_timeout_s=env.probe_timeout_s(),
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def why_blocked(self, name: str, distribution: str, *, named: bool) -> Optional[str]:
        """Return why a plugin must not be loaded, or None if it may.

        Parameters
        ----------
        name : str
            Name of the plugin.
        distribution : str
            Name of its distribution; may be empty.
        named : bool
            Whether it is in `modules`.
        """
        disabled = {canonical(entry) for entry in self.disabled}
        if canonical(name) in disabled or (distribution and canonical(distribution) in disabled):
            return "is disabled by FIB_DISABLE_PLUGINS"
        if self.no_plugins and not named:
            return "is not loaded because FIB_NO_PLUGINS is set"
        return None


def canonical(name: str) -> str:
    """Return `name` in the spelling in which names of distributions are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()
