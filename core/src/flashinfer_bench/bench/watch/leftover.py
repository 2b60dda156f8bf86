"""A note on disk of clocks that are set.

It is for the case that the guardian dies as well, as when a container is stopped: the clocks stay,
and whoever sets clocks of that device next undoes that first. A restart of the machine sets the
clocks free by itself, so a note from before one means nothing.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Optional

from flashinfer_bench import env

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Leftover:
    """The note about one device.

    Parameters
    ----------
    uuid : str
        The GPU, without ``GPU-``.
    """

    def __init__(self, uuid: str) -> None:
        self._path = env.cache_path() / "machine" / f"clocks-{uuid}.json"

    def write(self, clocks: dict[str, Optional[int]]) -> None:
        """Remember what is about to be set; where nothing can be written, go without."""
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps({"boot": _boot(), **clocks}), encoding="utf-8")

    def read(self) -> Optional[dict[str, Any]]:
        """Return what was set since the machine was started and has not been undone, if it was."""
        with suppress(OSError, ValueError):
            found = json.loads(self._path.read_text(encoding="utf-8"))
            if isinstance(found, dict) and found.pop("boot", None) == _boot():
                return found
        return None

    def remove(self) -> None:
        """Forget it."""
        with suppress(OSError):
            self._path.unlink()


def _boot() -> str:
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return ""
