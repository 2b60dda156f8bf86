"""Which versions decide whether what was built in a language still holds."""

from __future__ import annotations

import logging
from contextlib import suppress
from importlib import metadata
from typing import TYPE_CHECKING

from flashinfer_bench.plugins.manager import default_catalog

if TYPE_CHECKING:
    from flashinfer_bench.plugins.records import LanguageSpec
    from flashinfer_bench.plugins.registry import Registered

logger = logging.getLogger(__name__)


def language_versions() -> dict[str, str]:
    """Return the versions of the libraries that decide for a language, as far as installed.

    Nothing is imported for it but what a plugin's `LanguageSpec` names as its factory.
    """
    found: dict[str, str] = {}
    for entry in default_catalog().languages:
        found |= _versions_for(entry)
    return found


def _versions_for(entry: Registered[LanguageSpec]) -> dict[str, str]:
    if entry.spec.factory:
        try:
            told = entry.load()()
            return {name: str(told[name]) for name in entry.spec.libraries if name in told}
        except Exception as error:  # noqa: BLE001 - the plugin's code
            logger.warning("The versions for %s are not known: %s", entry.label, error)
            return {}
    found = {}
    for name in entry.spec.libraries:
        with suppress(metadata.PackageNotFoundError, ValueError):
            found[name] = metadata.version(name)
    return found
