"""Tasks, results, events and tokens in one SQLite file, shared by the server and its workers."""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Optional

from fib_serve.records import Event, Result, Role, Task, TaskStatus, Token
from flashinfer_bench.errors import ConfigError, FibError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

VERSION = 1
MAX_TRIES = 3
"""How often a task may lose its worker before it fails: it may be what ends them."""

_LOCK_TIMEOUT_S = 30.0
_EVENTS_KEPT_S = 30 * 24 * 3600.0
_TASK = (
    "id, owner, definition, solution, workloads, status, priority, key, created, started, finished,"
    " worker, tries, error, duplicate_of"
)
_SCHEMA = """
CREATE TABLE tasks (
    place INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
    definition TEXT NOT NULL, solution TEXT NOT NULL, workloads TEXT NOT NULL,
    status TEXT NOT NULL, priority INTEGER NOT NULL, key TEXT NOT NULL, created REAL NOT NULL,
    started REAL, finished REAL, worker TEXT, tries INTEGER NOT NULL DEFAULT 0, error TEXT,
    duplicate_of TEXT, stopping INTEGER NOT NULL DEFAULT 0, content TEXT NOT NULL);
CREATE INDEX tasks_waiting ON tasks (status, priority) WHERE status IN ('pending', 'running');
CREATE INDEX tasks_by_key ON tasks (key, status);
CREATE INDEX tasks_by_owner ON tasks (owner, status);
CREATE INDEX tasks_duplicates ON tasks (duplicate_of) WHERE duplicate_of IS NOT NULL;
CREATE TABLE owners (name TEXT PRIMARY KEY, served INTEGER NOT NULL);
CREATE TABLE results (
    id INTEGER PRIMARY KEY, task TEXT NOT NULL, workload TEXT NOT NULL, trace TEXT, note TEXT,
    exported INTEGER NOT NULL, UNIQUE (task, workload));
CREATE INDEX results_waiting ON results (exported) WHERE exported = 0;
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, task TEXT NOT NULL, kind TEXT NOT NULL, at REAL NOT NULL,
    data TEXT NOT NULL);
CREATE INDEX events_of_task ON events (task, id);
CREATE TABLE tokens (
    name TEXT PRIMARY KEY, role TEXT NOT NULL, digest TEXT NOT NULL UNIQUE, created REAL NOT NULL,
    expires REAL, revoked REAL);
"""
# What leads from each version to the next one.
_UPGRADES: dict[int, str] = {0: _SCHEMA}


def database_of(dataset: Path) -> Path:
    """Return where the database is if nobody names another place."""
    return dataset / "serve" / "serve.sqlite3"


class StoreTooNew(FibError):
    """The database was written by a later release."""


class TooManyTasks(FibError):
    """The owner has as many unfinished tasks as are allowed."""


class _Connection(sqlite3.Connection):
    """A thread's connection; closing it while a statement is executed would end the process."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.busy = threading.RLock()


class Store:
    """The database of a service; its methods may be called from any thread and process.

    Every change is on disk when its method returns.

    Parameters
    ----------
    path : Path
        The file; it is made if it is missing, and upgraded if it is of an earlier release.

    Raises
    ------
    StoreTooNew
        If it is of a later release.
    StorageError
        If it cannot be opened, or is something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()
        self._opened: list[_Connection] = []
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._upgrade()
        except FibError:
            self.close()
            raise
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise StorageError(
                f"{path}: the database of the service cannot be used: {error}",
                hint="name another one with --database, or restore a backup",
            ) from error

    def close(self) -> None:
        """Close the connections of all threads, when their statements have been executed."""
        with self._lock:
            opened, self._opened, self._local = self._opened, [], threading.local()
        for connection in opened:
            with connection.busy:
                connection.close()

    def _upgrade(self) -> None:
        with self._changing() as run:
            (found,) = run("PRAGMA user_version").fetchone()
            if found > VERSION:
                raise StoreTooNew(
                    f"{self.path}: version {found} of the database is of a later release; this one "
                    f"knows versions up to {VERSION}",
                    hint="upgrade fib-serve, or restore a backup that was made before the upgrade",
                )
            for version in range(found, VERSION):
                for statement in _UPGRADES[version].split(";\n"):
                    run(statement)
            run(f"PRAGMA user_version = {VERSION}")
            run("DELETE FROM events WHERE at < ?", time.time() - _EVENTS_KEPT_S)

    def _connection(self) -> _Connection:
        found: Optional[_Connection] = getattr(self._local, "connection", None)
        if found is None:
            found = sqlite3.connect(
                self.path,
                timeout=_LOCK_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=False,
                factory=_Connection,
            )
            found.execute("PRAGMA journal_mode = WAL")
            found.execute("PRAGMA synchronous = FULL")
            self._local.connection = found
            with self._lock:
                self._opened.append(found)
        return found

    def _read(self, query: str, *values: object) -> list[Any]:
        connection = self._connection()
        with connection.busy:
            return connection.execute(query, values).fetchall()

    @contextmanager
    def _changing(self) -> Iterator[_Run]:
        """Lend what executes statements of one transaction."""
        connection = self._connection()
        with connection.busy:
            connection.execute("BEGIN IMMEDIATE")
            with connection:  # commits, or rolls back
                yield _Run(connection)

    def submit(
        self,
        *,
        owner: str,
        definition: str,
        solution: dict[str, Any],
        solution_name: str,
        workloads: Sequence[str],
        key: str,
        priority: int = 0,
        max_pending: Optional[int] = None,
        force: bool = False,
    ) -> Task:
        """Accept a task; if one with the same key is known its results are shared.

        Parameters
        ----------
        owner, definition, solution_name, workloads, key, priority
            As of `Task`.
        solution : dict
            The solution as JSON.
        max_pending : int, optional
            How many unfinished tasks the owner may have.
        force : bool
            Whether it is evaluated even if there are results.

        Raises
        ------
        TooManyTasks
            If the owner has that many already.
        """
        now, task_id = time.time(), secrets.token_hex(12)
        with self._changing() as run:
            if max_pending is not None:
                query = "SELECT count(*) FROM tasks WHERE owner = ? AND status IN (?, ?)"
                (unfinished,) = run(query, owner, "pending", "running").fetchone()
                if unfinished >= max_pending:
                    raise TooManyTasks(
                        f"{owner} has {unfinished} unfinished tasks, and {max_pending} are allowed",
                        hint="wait until some of them are finished, or cancel some",
                    )
            known = None if force else run(_SAME, key).fetchone()
            done = known is not None and known[1] == TaskStatus.COMPLETED
            run(
                f"INSERT INTO tasks ({_TASK}, content) VALUES "
                "(?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, ?, NULL, 0, NULL, ?, ?)",
                *(task_id, owner, definition, solution_name, json.dumps(list(workloads))),
                *("completed" if done else "pending", priority, key, now, now if done else None),
                *(known[0] if known else None, json.dumps(solution)),
            )
            run.tell(task_id, "submitted")
            if done:
                run.tell(task_id, "completed")
        return self._known(task_id)

    def task(self, task_id: str) -> Optional[Task]:
        """Return a task; None if there is none of that id."""
        rows = self._read(f"SELECT {_TASK} FROM tasks WHERE id = ?", task_id)
        return _task(rows[0]) if rows else None

    def _known(self, task_id: str) -> Task:
        found = self.task(task_id)
        if found is None:
            raise ConfigError(f"there is no task {task_id!r}")
        return found

    def tasks(
        self,
        *,
        owner: Optional[str] = None,
        status: Optional[TaskStatus] = None,
        definition: Optional[str] = None,
        limit: int = 100,
        before: Optional[float] = None,
    ) -> list[Task]:
        """Return the newest tasks first.

        Parameters
        ----------
        owner, status, definition
            Only tasks with these.
        limit : int
            How many at most.
        before : float, optional
            Only those that were created earlier, in seconds since the epoch.
        """
        asked = {
            "owner = ?": owner,
            "status = ?": None if status is None else status.value,
            "definition = ?": definition,
            "created < ?": before,
        }
        wanted = {text: value for text, value in asked.items() if value is not None}
        where = f"WHERE {' AND '.join(wanted)}" if wanted else ""
        query = f"SELECT {_TASK} FROM tasks {where} ORDER BY place DESC LIMIT ?"
        return [_task(row) for row in self._read(query, *wanted.values(), limit)]

    def solution_of(self, task_id: str) -> dict[str, Any]:
        """Return the solution of a task as JSON."""
        self._known(task_id)
        ((content,),) = self._read("SELECT content FROM tasks WHERE id = ?", task_id)
        found: dict[str, Any] = json.loads(content)
        return found

    def results(self, task_id: str) -> list[Result]:
        """Return what is known of a task by now, in the order of evaluation."""
        query = (
            f"SELECT {_RESULT} FROM results WHERE task ="
            " (SELECT coalesce(duplicate_of, id) FROM tasks WHERE id = ?) ORDER BY id"
        )
        return [_result(row) for row in self._read(query, task_id)]

    def position(self, task_id: str) -> Optional[int]:
        """Return how many tasks are likely to be begun before this one; None if it is not waiting.

        Owners take turns, so of another owner's tasks only as many count as this owner has before.
        """
        rows = self._read(
            "SELECT t.id, t.owner, t.priority, coalesce(o.served, 0) FROM tasks t LEFT JOIN owners"
            " o ON o.name = t.owner WHERE t.status = 'pending' AND t.duplicate_of IS NULL"
            " ORDER BY t.place"
        )
        mine = next((row for row in rows if row[0] == task_id), None)
        if mine is None:
            return None
        owner, priority, served = str(mine[1]), int(mine[2]), int(mine[3])
        own = [row[0] for row in rows if row[1] == owner and row[2] == priority]
        before = own.index(task_id)
        ahead = sum(row[2] > priority for row in rows) + before
        turns = {row[1]: row[3] for row in rows if row[2] == priority and row[1] != owner}
        waiting = Counter(row[1] for row in rows if row[2] == priority)
        for whose, turn in turns.items():
            ahead += min(waiting[whose], before + ((turn, whose) < (served, owner)))
        return int(ahead)

    def counts(self) -> dict[TaskStatus, int]:
        """Return the number of tasks by status."""
        found = dict(self._read("SELECT status, count(*) FROM tasks GROUP BY status"))
        return {status: found.get(status.value, 0) for status in TaskStatus}

    def claim(self, worker: str) -> Optional[Task]:
        """Give the next task to a worker.

        The highest priority comes first; then owners take turns; then the oldest.
        """
        with self._changing() as run:
            found = run(
                "SELECT t.id, t.owner FROM tasks t LEFT JOIN owners o ON o.name = t.owner WHERE"
                " t.status = 'pending' AND t.duplicate_of IS NULL"
                " ORDER BY t.priority DESC, coalesce(o.served, 0), t.owner, t.place LIMIT 1"
            ).fetchone()
            if found is None:
                return None
            task_id, owner = found
            run(
                "UPDATE tasks SET status = 'running', worker = ?, started = ?, stopping = 0"
                " WHERE id = ?",
                *(worker, time.time(), task_id),
            )
            run(
                "INSERT OR REPLACE INTO owners VALUES"
                " (?, (SELECT coalesce(max(served), 0) + 1 FROM owners))",
                owner,
            )
            run.tell(task_id, "started", worker=worker)
        return self._known(task_id)

    def record(
        self,
        task_id: str,
        workload: str,
        trace: Optional[dict[str, Any]],
        note: Optional[str] = None,
    ) -> None:
        """Keep the result on one workload; the first one stays.

        Parameters
        ----------
        task_id, workload : str
            Of what.
        trace : dict, optional
            The trace as JSON; None if there can be no evaluation.
        note : str, optional
            Then why.
        """
        with self._changing() as run:
            added = run(
                "INSERT OR IGNORE INTO results (task, workload, trace, note, exported)"
                " VALUES (?, ?, ?, ?, ?)",
                *(task_id, workload, None if trace is None else json.dumps(trace), note),
                trace is None,
            ).rowcount
            if added:
                run.tell(task_id, "evaluated", workload=workload, **_told(trace, note))

    def stage(self, task_id: str, workload: str, stage: str) -> None:
        """Tell what is done for a task now."""
        with self._changing() as run:
            run.tell(task_id, "stage", workload=workload, stage=stage)

    def finish(
        self, task_id: str, status: TaskStatus, error: Optional[str] = None, **told: str
    ) -> None:
        """End a task, and those that share its results.

        Parameters
        ----------
        task_id : str
            A running task; nothing happens to others.
        status : TaskStatus
            A final one.
        error : str, optional
            Why it failed.
        **told : str
            What else the event says.
        """
        with self._changing() as run:
            if run("SELECT 1 FROM tasks WHERE id = ? AND status = 'running'", task_id).fetchone():
                self._end(run, task_id, status, error, **told)

    def _end(
        self, run: _Run, task_id: str, status: TaskStatus, error: Optional[str], **told: str
    ) -> None:
        if status is TaskStatus.CANCELLED:
            self._hand_on(run, task_id)
        query = "SELECT id FROM tasks WHERE duplicate_of = ? AND status = 'pending'"
        ended = [task_id, *(row[0] for row in run(query, task_id).fetchall())]
        for one in ended:
            run(
                "UPDATE tasks SET status = ?, error = ?, finished = ?, stopping = 0 WHERE id = ?",
                *(status.value, error, time.time(), one),
            )
            run.tell(one, status.value, **({"error": error} if error else {}), **told)

    def _hand_on(self, run: _Run, task_id: str) -> None:
        """Make the first of those that wait for the results of a task wait for a worker instead."""
        query = (
            "SELECT id FROM tasks WHERE duplicate_of = ? AND status = 'pending'"
            " ORDER BY priority DESC, place LIMIT 1"
        )
        if (heir := run(query, task_id).fetchone()) is not None:
            run(
                "UPDATE tasks SET duplicate_of = ? WHERE duplicate_of = ? AND status = 'pending'",
                *(heir[0], task_id),
            )
            run("UPDATE tasks SET duplicate_of = NULL WHERE id = ?", heir[0])
            run("UPDATE OR IGNORE results SET task = ? WHERE task = ?", heir[0], task_id)

    def requeue(self, worker: Optional[str] = None, *, blame: bool = True) -> int:
        """Put running tasks back whose worker has ended; return how many there were.

        Parameters
        ----------
        worker : str, optional
            The worker; None stands for all.
        blame : bool
            Whether the task may be the reason; it fails after `MAX_TRIES` times.
        """
        with self._changing() as run:
            rows = run(
                "SELECT id, tries, stopping FROM tasks WHERE status = 'running'"
                " AND (?1 IS NULL OR worker = ?1)",
                worker,
            ).fetchall()
            for task_id, tries, stopping in rows:
                tries += blame
                run("UPDATE tasks SET tries = ? WHERE id = ?", tries, task_id)
                if stopping:
                    self._end(run, task_id, TaskStatus.CANCELLED, None)
                elif tries >= MAX_TRIES:
                    error = f"the worker ended {tries} times while it evaluated this"
                    self._end(run, task_id, TaskStatus.FAILED, error)
                else:
                    run("UPDATE tasks SET status = 'pending' WHERE id = ?", task_id)
                    run.tell(task_id, "requeued")
        return len(rows)

    def cancel(self, task_id: str) -> bool:
        """End a task that waits, or ask its worker to; return whether it was unfinished."""
        with self._changing() as run:
            found = run("SELECT status FROM tasks WHERE id = ?", task_id).fetchone()
            if found is None or TaskStatus(found[0]).final:
                return False
            if found[0] == "running":
                run("UPDATE tasks SET stopping = 1 WHERE id = ?", task_id)
            else:
                self._end(run, task_id, TaskStatus.CANCELLED, None)
        return True

    def is_cancelled(self, task_id: str) -> bool:
        """Return whether the worker of a task is asked to end it."""
        rows = self._read("SELECT stopping FROM tasks WHERE id = ?", task_id)
        return bool(rows and rows[0][0])

    def retry(self, task_id: str) -> Task:
        """Have a task that failed, or was cancelled, evaluated once more.

        Raises
        ------
        ConfigError
            If it is neither, or unknown.
        """
        with self._changing() as run:
            status = self._known(task_id).status
            if status not in (TaskStatus.FAILED, TaskStatus.CANCELLED):
                raise ConfigError(
                    f"task {task_id} is {status.value}; only failed and cancelled ones are retried",
                    hint="submit it with force to have it evaluated again",
                )
            run("DELETE FROM results WHERE task = ? AND trace IS NULL", task_id)
            run(
                "UPDATE tasks SET status = 'pending', error = NULL, finished = NULL,"
                " started = NULL, tries = 0, duplicate_of = NULL WHERE id = ?",
                task_id,
            )
            run.tell(task_id, "requeued")
        return self._known(task_id)

    def unexported(self) -> list[Result]:
        """Return the results whose traces may not be in the dataset yet."""
        query = f"SELECT {_RESULT} FROM results WHERE exported = 0 ORDER BY id"
        return [_result(row) for row in self._read(query)]

    def mark_exported(self, result_id: int) -> None:
        """Take note that the trace of a result is in the dataset."""
        with self._changing() as run:
            run("UPDATE results SET exported = 1 WHERE id = ?", result_id)

    def events(
        self, after: int = 0, *, task: Optional[str] = None, limit: int = 500
    ) -> list[Event]:
        """Return events in the order in which they happened.

        Parameters
        ----------
        after : int
            Only those with a greater id.
        task : str, optional
            Only those of this task, or of the one whose results it shares.
        limit : int
            How many at most.
        """
        query = "SELECT id, task, kind, at, data FROM events WHERE id > ?"
        values: list[object] = [after]
        if task is not None:
            query += (
                " AND (task = ? OR kind IN ('evaluated', 'stage', 'started') AND task ="
                " (SELECT duplicate_of FROM tasks WHERE id = ?))"
            )
            values += [task, task]
        rows = self._read(f"{query} ORDER BY id LIMIT ?", *values, limit)
        return [Event(row[0], row[1], row[2], row[3], json.loads(row[4])) for row in rows]

    def last_event(self) -> int:
        """Return the id of the newest event; 0 if there is none."""
        ((found,),) = self._read("SELECT coalesce(max(id), 0) FROM events")
        return int(found)

    def add_token(self, name: str, role: Role, expires: Optional[float] = None) -> str:
        """Return a new secret; only its digest is kept.

        Parameters
        ----------
        name : str
            Of the account; a revoked one can be given a new secret.
        role : Role
            What it may do.
        expires : float, optional
            Until when, in seconds since the epoch.

        Raises
        ------
        ConfigError
            If there is such an account, or the name is empty, too long or not printable.
        """
        if not name.strip() or not name.isprintable() or len(name) > 64:
            raise ConfigError(
                f"{name!r} is no name of a token; allowed are 1 to 64 printable characters"
            )
        secret = f"fib_{secrets.token_urlsafe(32)}"
        with self._changing() as run:
            query = "SELECT 1 FROM tokens WHERE name = ? AND revoked IS NULL"
            if run(query, name).fetchone():
                raise ConfigError(
                    f"there is a token {name!r} already", hint="revoke it first, or take another"
                )
            run(
                "INSERT OR REPLACE INTO tokens VALUES (?, ?, ?, ?, ?, NULL)",
                *(name, role.value, _digest(secret), time.time(), expires),
            )
        return secret

    def verify(self, secret: str) -> Optional[Token]:
        """Return whose secret that is; None if it is unknown, expired or revoked."""
        rows = self._read(f"SELECT {_TOKEN} FROM tokens WHERE digest = ?", _digest(secret))
        found = _token(rows[0]) if rows else None
        if found is None or found.revoked is not None:
            return None
        return None if found.expires is not None and found.expires <= time.time() else found

    def tokens(self) -> list[Token]:
        """Return all accounts by name, the revoked ones too."""
        return [_token(row) for row in self._read(f"SELECT {_TOKEN} FROM tokens ORDER BY name")]

    def revoke(self, name: str) -> bool:
        """Make a token worthless; return whether there was one."""
        with self._changing() as run:
            query = "UPDATE tokens SET revoked = ? WHERE name = ? AND revoked IS NULL"
            return run(query, time.time(), name).rowcount > 0

    def backup(self, path: Path) -> None:
        """Copy the database while it is in use.

        Raises
        ------
        StorageError
            If the copy cannot be written.
        """
        try:
            connection = self._connection()
            copy = sqlite3.connect(path)
            try:
                with connection.busy:
                    connection.backup(copy)
            finally:
                copy.close()
        except sqlite3.Error as error:
            raise StorageError(f"{path}: the backup cannot be written: {error}") from error


class _Run:
    """Executes the statements of a transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __call__(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def tell(self, task_id: str, kind: str, **data: object) -> None:
        self(
            "INSERT INTO events (task, kind, at, data) VALUES (?, ?, ?, ?)",
            *(task_id, kind, time.time(), json.dumps(data)),
        )


_RESULT = "id, task, workload, trace, note, exported"
_TOKEN = "name, role, created, expires, revoked"
# The task whose results another one of the same key shares: a finished one rather than one to come.
_SAME = (
    "SELECT id, status FROM tasks WHERE key = ? AND duplicate_of IS NULL AND stopping = 0"
    " AND status IN ('completed', 'running', 'pending') ORDER BY status, place DESC LIMIT 1"
)


def _task(row: Sequence[Any]) -> Task:
    values = dict(zip(Task.__dataclass_fields__, row, strict=True))
    values.update(workloads=tuple(json.loads(row[4])), status=TaskStatus(row[5]))
    return Task(**values)


def _result(row: Sequence[Any]) -> Result:
    number, task, workload, trace, note, exported = row
    read = None if trace is None else json.loads(trace)
    return Result(number, task, workload, read, note, bool(exported))


def _token(row: Sequence[Any]) -> Token:
    return Token(row[0], Role(row[1]), *row[2:])


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _told(trace: Optional[dict[str, Any]], note: Optional[str]) -> dict[str, Any]:
    """Return what an event says of a result."""
    if trace is None:
        return {"status": None, "note": note}
    evaluation = trace.get("evaluation") or {}
    speed = evaluation.get("performance") or {}
    return {
        "status": evaluation.get("status"),
        "latency_ms": speed.get("latency_ms"),
        "speedup": speed.get("speedup_factor"),
    }
