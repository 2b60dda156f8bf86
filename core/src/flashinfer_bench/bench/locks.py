"""One measurement at a time on each device, over all processes of this machine."""

from __future__ import annotations

import logging
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flashinfer_bench import env
from flashinfer_bench.errors import RunnerFatalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from filelock import BaseFileLock

logger = logging.getLogger(__name__)

_POLL_S = 0.05
_NOTICE_AFTER_S = 5.0


class DeviceLock:
    """Excludes other measurements on a device.

    The lock is a file in ``FIB_CACHE_PATH/locks``, so it holds between processes that share this
    folder. The operating system frees it when its holder dies.

    Parameters
    ----------
    device : str
        ``cpu``, ``cuda`` or ``cuda:N``.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.path = lock_path(device)

    @contextmanager
    def held(self, give_up: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Hold the lock for the body of a ``with`` statement.

        Parameters
        ----------
        give_up : callable
            Asked again and again while waiting; if it returns True, waiting ends.

        Yields
        ------
        bool
            Whether the lock is held; False only after `give_up`.

        Raises
        ------
        RunnerFatalError
            If there can be no lock file.
        """
        from filelock import FileLock

        self._make_folder()
        lock = FileLock(self.path)
        began, noticed = time.monotonic(), False
        while not self._try(lock) and not give_up():
            time.sleep(_POLL_S)
            if not noticed and time.monotonic() - began > _NOTICE_AFTER_S:
                logger.info("waiting for %s: another process measures there", self.device)
                noticed = True
        try:
            yield bool(lock.is_locked)
        finally:
            lock.release()

    def _make_folder(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error

    def _try(self, lock: BaseFileLock) -> bool:
        from filelock import Timeout

        try:
            lock.acquire(timeout=0)
        except Timeout:
            return False
        except OSError as error:
            raise self._unusable(error) from error
        return True

    def _unusable(self, error: OSError) -> RunnerFatalError:
        return RunnerFatalError(
            f"cannot lock {self.path}: {error}",
            hint="set FIB_CACHE_PATH to a folder that can be written",
        )


def lock_path(device: str) -> Path:
    """Return the lock file of a device.

    CUDA devices are numbered by ``CUDA_VISIBLE_DEVICES``: the same number may be another card in
    another process, so the file is named after the entry of that list.
    """
    kind, _, index = device.partition(":")
    if kind == "cuda":
        visible = env.visible_cuda_devices()
        number = int(index or 0)
        index = visible[number] if visible and number < len(visible) else str(number)
    name = re.sub(r"[^A-Za-z0-9-]", "_", f"{kind}-{index}" if index else kind)
    return env.cache_path() / "locks" / f"device-{name}.lock"
