"""The service by the names that it had in the first release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from fib_serve.records import Task, TaskStatus
from fib_serve.store import Store as TaskStore
from flashinfer_bench import env
from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import FastAPI
    from starlette.types import Receive, Scope, Send

    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.data import TraceSet

__all__ = ["Scheduler", "Task", "TaskStatus", "TaskStore", "app", "init_app"]


class Scheduler:
    """What `init_app` makes a service of.

    Parameters
    ----------
    trace_set : TraceSet
        The dataset; it must belong to a folder.
    config : BenchmarkConfig, optional
        How solutions are evaluated; what was not set explicitly is left to the service.
    devices : sequence of str, optional
        One worker each; the CPU by default.

    Raises
    ------
    ConfigError
        If the dataset is in memory only.
    """

    def __init__(
        self,
        trace_set: TraceSet,
        config: Optional[BenchmarkConfig] = None,
        devices: Optional[Sequence[str]] = None,
    ) -> None:
        from fib_serve.app import ServeSettings

        if trace_set.root is None:
            raise ConfigError(
                "the dataset is in memory only, where workers cannot read it",
                hint="load it with TraceSet.from_path",
            )
        explicit = config.explicit_fields if config is not None else frozenset()
        told = config.model_dump(mode="json", include=set(explicit)) if config is not None else {}
        self.settings = ServeSettings(
            trace_set.root, devices=tuple(devices or ("cpu",)), benchmark=told
        )


def init_app(scheduler: Scheduler) -> FastAPI:
    """Return the service of a scheduler; `app` passes requests on to it from now on."""
    from fib_serve.app import create_app

    app.service = create_app(scheduler.settings)
    return app.service


class _Service:
    """An ASGI application for ``uvicorn flashinfer_bench.serve.app:app``.

    It is the service that `init_app` returned last, or that of the folder ``FIB_DATASET_PATH``.
    """

    def __init__(self) -> None:
        self.service: Optional[FastAPI] = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._made()(scope, receive, send)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._made(), name)

    def _made(self) -> FastAPI:
        if self.service is None:
            from fib_serve.app import ServeSettings, create_app

            self.service = create_app(ServeSettings(Path(env.dataset_path())))
        return self.service


app = _Service()
