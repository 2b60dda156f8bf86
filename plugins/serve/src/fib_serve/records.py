"""What the service keeps: tasks, results, events and tokens."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Optional

HIDDEN = "hidden"
"""The uuid by which hidden workloads are told."""


class TaskStatus(str, Enum):
    """Where a task is; the first four are those of the original service."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether it stays so unless someone asks for another try."""
        return self not in (TaskStatus.PENDING, TaskStatus.RUNNING)


class Role(str, Enum):
    """What the bearer of a token may do; each includes the ones before."""

    READER = "reader"
    SUBMITTER = "submitter"
    ADMIN = "admin"

    def allows(self, needed: Role) -> bool:
        """Return whether this role is enough where `needed` is asked for."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True)
class Task:
    """A solution to be evaluated on workloads of its definition.

    Attributes
    ----------
    id : str
        Random, hard to guess.
    owner : str
        Name of the token it was submitted with.
    definition, solution : str
        Their names; that of the solution ends with a digest of its content.
    workloads : tuple of str
        Uuids, in the order of evaluation.
    status : TaskStatus
    priority : int
        Higher ones first.
    key : str
        Digest of content, workloads, settings and hardware: equal keys have equal results.
    created, started, finished : float
        Seconds since the epoch; None before that.
    worker : str, optional
        Device of the worker that has it, or had it.
    tries : int
        How many times it was begun.
    error : str, optional
        Why it failed.
    duplicate_of : str, optional
        The task whose results it shares.
    """

    id: str
    owner: str
    definition: str
    solution: str
    workloads: tuple[str, ...]
    status: TaskStatus
    priority: int
    key: str
    created: float
    started: Optional[float] = None
    finished: Optional[float] = None
    worker: Optional[str] = None
    tries: int = 0
    error: Optional[str] = None
    duplicate_of: Optional[str] = None


@dataclass(frozen=True)
class Result:
    """The evaluation of a task on one workload.

    Attributes
    ----------
    id : int
    task : str
        The task's id.
    workload : str
        The uuid.
    trace : dict, optional
        The trace as JSON; None if there can be no evaluation.
    note : str, optional
        Then why.
    exported : bool
        Whether the trace is in the dataset.
    """

    id: int
    task: str
    workload: str
    trace: Optional[dict[str, Any]]
    note: Optional[str]
    exported: bool


@dataclass(frozen=True)
class Event:
    """What happened to a task.

    Attributes
    ----------
    id : int
        They only grow.
    task : str
        The task's id.
    kind : str
        ``submitted``, ``started``, ``evaluated``, ``requeued``, ``completed``, ``failed``,
        ``cancelled`` or ``stage``.
    at : float
        Seconds since the epoch.
    data : dict
        Of ``evaluated``: workload, status, latency_ms, speedup. Of ``stage``: workload, stage.
    """

    id: int
    task: str
    kind: str
    at: float
    data: dict[str, Any]


@dataclass(frozen=True)
class Token:
    """An account.

    Attributes
    ----------
    name : str
        Unique; the owner of what is submitted with it.
    role : Role
    created : float
        Seconds since the epoch.
    expires, revoked : float, optional
        Seconds since the epoch.
    """

    name: str
    role: Role
    created: float
    expires: Optional[float] = None
    revoked: Optional[float] = None
