"""Keeps a worker process for each device running, from within the server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Optional

from filelock import FileLock, Timeout

from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fib_serve.app import ServeSettings
    from fib_serve.store import Store

logger = logging.getLogger(__name__)

TRY_AGAIN = 75
"""Exit status of a worker after trouble that is not the fault of a task, such as a full disk."""

SILENT_S = 60.0
"""After how long without a message a worker is replaced; it sends one every second."""

_READY_S = 300.0  # importing everything from a cold disk takes a while
_GRACE_S = 5.0
_FIRST_DELAY_S, _LONGEST_DELAY_S, _STABLE_S = 0.2, 30.0, 60.0


@dataclass(frozen=True)
class WorkerState:
    """How a worker is.

    Attributes
    ----------
    device : str
        What it evaluates on.
    healthy : bool
        Whether it is ready for tasks, or has one.
    hardware : str, optional
        Name of the device; None until the first worker on it was ready.
    task : str, optional
        Id of the task that it has.
    restarts : int
        How many workers before it have ended.
    name : str
        By which the store knows it.
    """

    device: str
    healthy: bool = False
    hardware: Optional[str] = None
    task: Optional[str] = None
    restarts: int = 0
    name: str = ""


class Supervisor:
    """Starts the workers of a service, and starts those that end again.

    Parameters
    ----------
    store : Store
        The tasks.
    settings : ServeSettings
        ``dataset``, ``devices``, ``benchmark`` and ``log_level`` count; a device may be named
        several times.
    on_event : callable
        Called in the event loop after something happened to a task or a worker.

    Attributes
    ----------
    problem : ConfigError, optional
        Why no task is evaluated any more: results of unlike devices would be mixed.
    """

    def __init__(self, store: Store, settings: ServeSettings, on_event: Callable[[], None]) -> None:
        self._store, self._settings, self._on_event = store, settings, on_event
        seen: Counter[str] = Counter()
        self._states: list[WorkerState] = []
        for device in settings.devices:
            seen[device] += 1
            name = device if seen[device] == 1 else f"{device}#{seen[device]}"
            self._states.append(WorkerState(device, name=name))
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._stopping = asyncio.Event()
        self.problem: Optional[ConfigError] = None
        self._lock = FileLock(store.path.with_name(f".{store.path.name}.server"), timeout=0)

    @property
    def workers(self) -> list[WorkerState]:
        """How each worker is now, in the order of the devices."""
        return list(self._states)

    async def start(self) -> None:
        """Start all workers; they are not ready yet when this returns.

        Raises
        ------
        ConfigError
            If another server uses the database: they would take tasks from each other.
        """
        try:
            self._lock.acquire()
        except Timeout:
            raise ConfigError(
                f"another server uses the database {self._store.path}",
                hint="stop it, or name another database",
            ) from None
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        await asyncio.to_thread(self._store.requeue, blame=False)  # of a server that was killed
        self._keepers = [
            asyncio.create_task(self._keep(number), name=f"fib-serve-{state.name}")
            for number, state in enumerate(self._states)
        ]

    async def stop(self) -> None:
        """End all workers; what they were about is begun again after the next start."""
        if self._loop is None:
            return
        self._end_workers()
        if self._keepers:
            _, late = await asyncio.wait(self._keepers, timeout=_GRACE_S)
            for keeper in late:
                keeper.cancel()
            await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.to_thread(self._store.requeue, blame=False)
        self._keepers, self._loop = [], None
        self._lock.release()

    def _end_workers(self) -> None:
        self._stopping.set()
        for process in self._processes.values():
            if process.stdin is not None:
                process.stdin.close()

    def wake(self) -> None:
        """Have workers look for new tasks and for cancelled ones now; from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for process in self._processes.values():
            if process.stdin is not None and not process.stdin.is_closing():
                process.stdin.write(b"wake\n")

    def _set(self, number: int, **changes: Any) -> None:
        self._states[number] = replace(self._states[number], **changes)
        self._on_event()

    async def _keep(self, number: int) -> None:
        name, delay = self._states[number].name, _FIRST_DELAY_S
        while not self._stopping.is_set():
            began = time.monotonic()
            status: object = None
            try:
                status = await self._serve(number)
            except Exception as error:  # the next one may do better
                logger.exception("worker %s", name)
                status = error
            if self._stopping.is_set():
                return
            await asyncio.to_thread(self._store.requeue, name, blame=status != TRY_AGAIN)
            restarts = self._states[number].restarts + 1
            self._set(number, healthy=False, task=None, restarts=restarts)
            if time.monotonic() - began > _STABLE_S:
                delay = _FIRST_DELAY_S
            logger.warning("worker %s ended (%s); the next one in %.1f s", name, status, delay)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay)
            delay = min(2 * delay, _LONGEST_DELAY_S)

    async def _serve(self, number: int) -> object:
        """Run one worker process to its end; return its exit status, or why it was ended."""
        state, settings = self._states[number], self._settings
        options = {
            "database": str(self._store.path.absolute()),
            "dataset": str(settings.dataset.absolute()),
            "device": state.device,
            "name": state.name,
            "benchmark": json.dumps({"log_level": settings.log_level, **settings.benchmark}),
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "fib_serve.worker"),
            *(word for name, value in options.items() for word in (f"--{name}", value)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal is for the server
        )
        self._processes[state.name] = process
        try:
            assert process.stdout is not None
            if self._stopping.is_set() and process.stdin is not None:
                process.stdin.close()
            patience = _READY_S
            while line := await asyncio.wait_for(process.stdout.readline(), patience):
                self._hear(number, line)
                patience = SILENT_S
            return await process.wait()
        except asyncio.TimeoutError:
            self._set(number, healthy=False)  # to end it may take a while
            return f"it has said nothing for {patience:g} s"
        finally:
            del self._processes[state.name]
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _hear(self, number: int, line: bytes) -> None:
        if not line.strip():
            return
        message = json.loads(line)
        if "ready" in message:
            hardware = message["ready"]["hardware"]
            self._set(number, healthy=self.problem is None, hardware=hardware)
            self._compare_devices()
        elif "task" in message:
            self._set(number, task=message["task"])
        elif "event" in message:
            self._on_event()

    def _compare_devices(self) -> None:
        known = {one.hardware: one.device for one in self._states if one.hardware is not None}
        if len(known) < 2 or self.problem is not None:
            return
        told = " and ".join(f"{device} is {hardware!r}" for hardware, device in known.items())
        self.problem = ConfigError(
            f"{told}: results of unlike devices do not belong in one queue",
            hint="run one service for each kind, with its own --devices, --database and --port",
        )
        logger.error("no task is evaluated: %s", self.problem)
        self._end_workers()
        for number in range(len(self._states)):
            self._set(number, healthy=False)
