"""The database of the service: order, sharing, ends of workers, tokens, versions."""

import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fib_serve.records import Role, TaskStatus
from fib_serve.store import MAX_TRIES, VERSION, Store, StoreTooNew, TooManyTasks
from flashinfer_bench.errors import ConfigError, StorageError

DONE = TaskStatus.COMPLETED


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "serve" / "tasks.sqlite3")
    yield made
    made.close()


def submit(store, key, owner="ann", **more):
    return store.submit(
        owner=owner,
        definition="add",
        solution={"name": f"sol_{key}"},
        solution_name=f"sol_{key}",
        workloads=["w1", "w2"],
        key=str(key),
        **more,
    )


def trace_of(workload, status="PASSED", latency=0.5):
    performance = {"latency_ms": latency, "speedup_factor": 2.0}
    return {
        "workload": {"uuid": workload},
        "evaluation": {"status": status, "performance": performance},
    }


def claimed(store):
    found = []
    while (task := store.claim("cpu")) is not None:
        found.append(task.id)
        store.finish(task.id, DONE)
    return found


def test_a_task_from_beginning_to_end(store):
    task = submit(store, 1)
    assert (task.status, task.workloads) == (TaskStatus.PENDING, ("w1", "w2"))
    assert store.claim("cpu").id == task.id
    store.stage(task.id, "w1", "evaluating")
    store.record(task.id, "w1", trace_of("w1"))
    store.record(task.id, "w1", trace_of("w1", "TIMEOUT"))  # the first one stays
    store.record(task.id, "w2", None, "no builder")
    store.finish(task.id, DONE)
    store.finish(task.id, TaskStatus.FAILED, "too late")
    found = store.task(task.id)
    assert (found.status, found.error, found.worker) == (DONE, None, "cpu")
    assert [(one.workload, one.note) for one in store.results(task.id)] == [
        ("w1", None),
        ("w2", "no builder"),
    ]
    kinds = [one.kind for one in store.events(task=task.id)]
    assert kinds == ["submitted", "started", "stage", "evaluated", "evaluated", "completed"]
    told = store.events(task=task.id)[3]
    assert told.data["workload"] == "w1"
    assert told.data["latency_ms"] == 0.5
    assert store.events(after=told.id)[0].id > told.id
    (waiting,) = store.unexported()
    store.mark_exported(waiting.id)
    assert not store.unexported()
    assert store.solution_of(task.id) == {"name": "sol_1"}


def test_owners_take_turns_and_priority_comes_first(store):
    many = [submit(store, n).id for n in range(5)]
    few = [submit(store, f"b{n}", "bob").id for n in range(2)]
    urgent = submit(store, "u", "cy", priority=1).id
    order = claimed(store)
    assert order == [urgent, many[0], few[0], many[1], few[1], *many[2:]]


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=14))
def test_the_position_is_the_order_in_which_tasks_are_claimed(tmp_path_factory, wanted):
    store = Store(tmp_path_factory.mktemp("store") / "tasks.sqlite3")
    tasks = [submit(store, n, owner, priority=rank).id for n, (owner, rank) in enumerate(wanted)]
    if tasks:  # someone has been served
        first = store.claim("cpu").id
        store.finish(first, DONE)
        tasks.remove(first)
    top = {one: store.task(one).priority for one in tasks}
    told = {one: store.position(one) for one in tasks}
    order = claimed(store)
    assert sorted(order) == sorted(tasks)
    # Exact for those of the highest priority; turns taken before change it for the others.
    highest = max(top.values(), default=0)
    for place, one in enumerate(order):
        if top[one] == highest:
            assert told[one] == place
    store.close()


def test_equal_tasks_share_their_results(store):
    first, second = submit(store, "k"), submit(store, "k", "bob")
    assert second.duplicate_of == first.id
    assert store.claim("cpu").id == first.id
    assert store.claim("cpu") is None
    store.record(first.id, "w1", trace_of("w1"))
    assert [one.workload for one in store.results(second.id)] == ["w1"]
    store.finish(first.id, DONE)
    assert store.task(second.id).status is DONE
    third = submit(store, "k")
    assert third.status is DONE
    assert store.results(third.id)
    assert [one.kind for one in store.events(task=third.id)][-1] == "completed"
    assert submit(store, "k", force=True).status is TaskStatus.PENDING


def test_a_cancelled_task_hands_its_place_on(store):
    first, second, third = (submit(store, "k", owner) for owner in ("ann", "bob", "cy"))
    assert store.cancel(first.id)
    assert store.task(first.id).status is TaskStatus.CANCELLED
    assert store.claim("cpu").id == second.id
    assert store.task(third.id).duplicate_of == second.id
    store.record(second.id, "w1", trace_of("w1"))
    assert store.cancel(second.id)
    assert store.is_cancelled(second.id)
    store.finish(second.id, TaskStatus.CANCELLED)
    assert store.claim("cpu").id == third.id
    assert [one.workload for one in store.results(third.id)] == ["w1"]  # work is not lost
    assert not store.cancel(first.id)
    assert not store.cancel("unknown")


def test_a_task_whose_worker_ends_is_tried_again_but_not_for_ever(store):
    task = submit(store, 1)
    for _ in range(5):
        store.claim("cpu")
        assert store.requeue(blame=False) == 1
    for _ in range(MAX_TRIES):
        store.claim("cuda:0")
        assert store.requeue("cuda:1") == 0
        assert store.requeue("cuda:0") == 1
    found = store.task(task.id)
    assert found.status is TaskStatus.FAILED
    assert "3 times" in found.error
    assert store.retry(task.id).status is TaskStatus.PENDING
    with pytest.raises(ConfigError, match="is pending; only failed and cancelled"):
        store.retry(task.id)
    store.claim("cpu")
    store.cancel(task.id)
    store.requeue("cpu")
    assert store.task(task.id).status is TaskStatus.CANCELLED


def test_an_owner_may_have_so_many_unfinished_tasks(store):
    submit(store, 1, max_pending=2)
    submit(store, 2, max_pending=2)
    with pytest.raises(TooManyTasks, match="ann has 2 unfinished tasks"):
        submit(store, 3, max_pending=2)
    submit(store, 3, "bob", max_pending=2)
    assert store.counts()[TaskStatus.PENDING] == 3
    assert [one.owner for one in store.tasks()] == ["bob", "ann", "ann"]
    assert len(store.tasks(owner="ann", limit=1)) == 1
    assert store.tasks(status=DONE) == []


def test_tokens(store):
    secret = store.add_token("ann", Role.SUBMITTER)
    assert store.verify(secret).name == "ann"
    assert store.verify(secret).role.allows(Role.READER)
    assert not store.verify(secret).role.allows(Role.ADMIN)
    assert store.verify("fib_guess") is None
    with pytest.raises(ConfigError, match="there is a token 'ann' already"):
        store.add_token("ann", Role.ADMIN)
    with pytest.raises(ConfigError, match="no name of a token"):
        store.add_token("a\nb", Role.ADMIN)
    assert store.revoke("ann")
    assert not store.revoke("ann")
    assert store.verify(secret) is None
    again = store.add_token("ann", Role.READER)
    assert again != secret
    assert store.verify(again).role is Role.READER
    assert store.verify(store.add_token("old", Role.ADMIN, time.time() - 1)) is None
    assert secret.encode() not in store.path.read_bytes()


def test_a_later_database_and_other_files_are_refused(tmp_path):
    path = tmp_path / "tasks.sqlite3"
    Store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(StoreTooNew, match=f"version {VERSION + 1} of the database"):
        Store(path)
    path = tmp_path / "text"
    path.write_bytes(b"not a database, and long enough to be told from an empty one" * 20)
    with pytest.raises(StorageError, match="cannot be used"):
        Store(path)


def test_a_backup_is_whole_while_tasks_come_in(store, tmp_path):
    stop = threading.Event()

    def work():
        number = 0
        while not stop.is_set():
            submit(store, number := number + 1)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.2)
    store.backup(tmp_path / "copy.sqlite3")
    stop.set()
    thread.join()
    copy = Store(tmp_path / "copy.sqlite3")
    count = copy.counts()[TaskStatus.PENDING]
    assert 0 < count <= store.counts()[TaskStatus.PENDING]
    assert len(claimed(copy)) == count
    copy.close()


def test_workers_never_share_a_task(store):
    tasks = [submit(store, n).id for n in range(60)]
    found, lock = [], threading.Lock()

    def work(name):
        own = Store(store.path)
        while (task := own.claim(name)) is not None:
            with lock:
                found.append(task.id)
        own.close()

    threads = [threading.Thread(target=work, args=(f"cuda:{n}",)) for n in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert Counter(found) == Counter(tasks)


SUBMITTING = """
import sys
from pathlib import Path
from fib_serve.store import Store
store = Store(Path(sys.argv[1]))
for number in range(10_000):
    task = store.submit(owner="ann", definition="add", solution={"name": "s"}, solution_name="s",
                        workloads=["w"], key=f"{sys.argv[2]}-{number}")
    print(task.id, flush=True)
"""


def test_it_is_closed_while_others_read(tmp_path):
    """Closing a connection that is in use has ended the process."""
    code = f"""
import sqlite3, threading, time
from pathlib import Path
from fib_serve.store import Store

def read(store):
    for _ in range(300):
        try: store.events(0, limit=100)
        except sqlite3.ProgrammingError: pass  # closed

for number in range(20):
    store = Store(Path({str(tmp_path)!r}, str(number)))
    readers = [threading.Thread(target=read, args=[store]) for _ in range(4)]
    for one in readers: one.start()
    time.sleep(0.01)
    store.close()
    for one in readers: one.join()
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_is_accepted_survives_kill_9(tmp_path):
    path, accepted = tmp_path / "tasks.sqlite3", []
    for turn in range(6):
        command = [sys.executable, "-c", SUBMITTING, str(path), str(turn)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        accepted.append(process.stdout.readline().strip())
        time.sleep(0.02 * turn)
        process.send_signal(signal.SIGKILL)
        lines = process.communicate()[0].splitlines(keepends=True)
        accepted += [line.strip() for line in lines if line.endswith("\n")]
    store = Store(path)
    assert set(accepted) <= set(claimed(store))
    store.close()
