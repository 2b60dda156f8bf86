"""Writing survives crowds, crashes and full disks. Real processes, real files, real signals."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.data import storage
from flashinfer_bench.data.storage import append_lines, lock_path, locked, replace_file
from flashinfer_bench.errors import StorageError


def start(script, *args, **options):
    command = [sys.executable, "-c", dedent(script), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def finish(process, code=0):
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err.decode()
    return out.decode()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "x.jsonl"


# -------------------------------------------------------------------------------------- appending


def test_lines_are_appended(path):
    append_lines(path, [b"one\n"])
    append_lines(path, [b"two\n", b"three\n"])
    assert path.read_bytes() == b"one\ntwo\nthree\n"


def test_no_lines_make_no_file(path):
    append_lines(path, [])
    assert not path.exists()


def test_a_complete_last_line_is_terminated_first(path):
    path.parent.mkdir()
    path.write_bytes(b'{"a":1}')
    append_lines(path, [b'{"b":2}\n'])
    assert path.read_bytes() == b'{"a":1}\n{"b":2}\n'


def test_a_broken_last_line_stays_a_line_of_its_own(path):
    path.parent.mkdir()
    path.write_bytes(b"{broken")
    append_lines(path, [b'{"b":2}\n'])
    assert path.read_bytes() == b'{broken\n{"b":2}\n'


def test_a_torn_last_line_is_moved_aside(path, caplog):
    path.parent.mkdir()
    path.write_bytes(b'{"a":1}\n{"b": "tw')
    append_lines(path, [b'{"c":3}\n'])
    assert path.read_bytes() == b'{"a":1}\n{"c":3}\n'
    assert path.with_name("x.jsonl.torn").read_bytes() == b'{"b": "tw\n'
    assert "moved an unfinished last line" in caplog.text


def test_several_torn_lines_are_all_kept(path):
    path.parent.mkdir()
    for text in (b'{"a', b'{"b'):
        with path.open("ab") as file:
            file.write(text)
        append_lines(path, [b"{}\n"])
    assert path.read_bytes() == b"{}\n{}\n"
    assert path.with_name("x.jsonl.torn").read_bytes() == b'{"a\n{"b\n'


@pytest.mark.parametrize("size", [10, storage._BLOCK - 1, storage._BLOCK, 3 * storage._BLOCK + 7])
def test_torn_lines_of_any_length_are_found(path, size):
    path.parent.mkdir()
    torn = b'{"x": "' + b"y" * size
    path.write_bytes(b"{}\n" + torn)
    append_lines(path, [b"{}\n"])
    assert path.read_bytes() == b"{}\n{}\n"
    assert path.with_name("x.jsonl.torn").read_bytes() == torn + b"\n"


_RECORDS = st.lists(
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9)), max_size=4
)


@settings(deadline=None, max_examples=50)
@given(_RECORDS, st.data())
def test_after_a_cut_anywhere_no_whole_record_is_lost(tmp_path_factory, records, data):
    path = tmp_path_factory.mktemp("cut") / "x.jsonl"
    lines = [(json.dumps(record) + "\n").encode() for record in records]
    cut = data.draw(st.integers(0, sum(map(len, lines))))
    path.write_bytes(b"".join(lines)[:cut])
    append_lines(path, [b'{"last": true}\n'])
    kept = [json.loads(line) for line in path.read_bytes().splitlines()]
    whole = path.read_bytes().count(b"\n") - 1
    assert kept == [*records[:whole], {"last": True}]
    assert sum(map(len, lines[: whole + 1])) > cut or whole == len(lines)


def test_the_lock_is_hidden_and_beside_the_file(path):
    append_lines(path, [b"{}\n"])
    assert {file.name for file in path.parent.iterdir()} == {"x.jsonl", ".x.jsonl.lock"}
    assert lock_path(path).parent == path.parent


def test_a_held_lock_is_waited_for_and_then_named(path):
    errors = []

    def wait():
        try:
            with locked(path, timeout_s=0.05):
                pass
        except StorageError as error:
            errors.append(str(error))

    with locked(path):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
    [message] = errors
    assert "another process has held its lock for 0.05 s" in message
    assert str(lock_path(path)) in message


def test_a_lock_is_given_back_after_an_error(path):
    with pytest.raises(ZeroDivisionError), locked(path):
        raise ZeroDivisionError
    with locked(path, timeout_s=0.1):
        pass


def test_a_lock_of_a_dead_process_is_free(path):
    process = start(
        """
        import os, signal, sys
        from pathlib import Path
        from flashinfer_bench.data.storage import locked
        with locked(Path(sys.argv[1])):
            os.kill(os.getpid(), signal.SIGKILL)
        """,
        path,
    )
    finish(process, -signal.SIGKILL)
    with locked(path, timeout_s=1.0):
        pass


def test_threads_lose_nothing(path):
    def append(name):
        for number in range(25):
            append_lines(path, [f'{{"{name}": {number}}}\n'.encode()])

    threads = [threading.Thread(target=append, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = path.read_text().splitlines()
    assert sorted(lines) == sorted(f'{{"{name}": {n}}}' for name in "abc" for n in range(25))


def test_two_processes_append_a_thousand_traces_each(dataset):
    script = """
        import sys
        from flashinfer_bench.data import Trace, TraceSet
        trace_set = TraceSet.from_path(sys.argv[1])
        template = trace_set.traces["gemm_n8_k4"][0]
        sys.stdin.readline()
        for number in range(1000):
            workload = template.workload.model_copy(update={"uuid": f"{sys.argv[2]}-{number}"})
            trace_set.add_traces([template.model_copy(update={"workload": workload})])
    """
    both = [start(script, dataset, name, stdin=subprocess.PIPE) for name in ("one", "two")]
    for process in both:  # all are ready before any begins
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in both:
        finish(process)
    from flashinfer_bench.data import TraceSet

    uuids = [trace.workload.uuid for trace in TraceSet.from_path(dataset).traces["gemm_n8_k4"]]
    assert len(uuids) == 3 + 2000
    assert set(uuids[3:]) == {f"{name}-{n}" for name in ("one", "two") for n in range(1000)}
    for name in ("one", "two"):  # each writer's own order is kept
        mine = [uuid for uuid in uuids if uuid.startswith(name)]
        assert mine == [f"{name}-{number}" for number in range(1000)]


# ---------------------------------------------------------------------------------------- crashes

DIE_IN_THE_MIDDLE = """
    import os, signal, sys
    from pathlib import Path
    from flashinfer_bench.data import storage

    real_write = os.write

    def half(descriptor, data):
        if len(data) < 100:
            return real_write(descriptor, data)
        real_write(descriptor, data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    storage.os.write = half
    storage.append_lines(Path(sys.argv[1]), [b'{"log": "' + b"x" * 5000 + b'"}\\n'])
"""


def test_killed_in_the_middle_of_a_write(dataset, make):
    from flashinfer_bench.data import TraceSet

    path = dataset / "traces" / "gemm" / "gemm_n8_k4.jsonl"
    before = path.read_bytes()
    finish(start(DIE_IN_THE_MIDDLE, path), -signal.SIGKILL)
    assert before < path.read_bytes()
    assert path.read_bytes().startswith(before)

    trace_set = TraceSet.from_path(dataset)
    assert len(trace_set.traces["gemm_n8_k4"]) == 3
    trace_set.add_traces([make.trace(uuid="after")])
    uuids = [trace.workload.uuid for trace in TraceSet.from_path(dataset).traces["gemm_n8_k4"]]
    assert uuids == ["w1", "w1", "w2", "after"]


def test_killed_at_any_moment(tmp_path):
    """A writer of large lines is killed again and again; every record that it reported is there."""
    path = tmp_path / "x.jsonl"
    script = """
        import sys
        from pathlib import Path
        from flashinfer_bench.data.storage import append_lines
        number, log = int(sys.argv[2]), b"x" * 2_000_000
        while True:
            append_lines(Path(sys.argv[1]), [b'{"n": %d, "log": "%s"}\\n' % (number, log)])
            print(number, flush=True)
            number += 1
    """
    reported = []
    for attempt in range(4):
        process = start(script, path, attempt * 1000)
        reported.append(int(process.stdout.readline()))
        time.sleep(0.01 + 0.013 * attempt)
        process.kill()
        rest, _ = process.communicate()
        reported.extend(
            int(line) for line in rest.splitlines(keepends=True) if line.endswith(b"\n")
        )
    append_lines(path, [b'{"n": -1}\n'])
    found = [json.loads(line)["n"] for line in path.read_bytes().splitlines()]
    assert set(reported) <= set(found)
    assert len(found) == len(set(found))
    assert found[-1] == -1


# ------------------------------------------------------------------------------------- full disks

LIMITED = """
    import resource, sys
    from pathlib import Path
    from flashinfer_bench.data import storage
    from flashinfer_bench.errors import StorageError

    path, limit = Path(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        getattr(storage, sys.argv[3])(path, eval(sys.argv[4]))
    except StorageError as error:
        print(error.errno, error)
"""


def test_a_full_disk_during_an_append_keeps_what_was_there(path):
    append_lines(path, [b'{"a":1}\n'])
    before = path.read_bytes()
    text = finish(start(LIMITED, path, len(before) + 50, "append_lines", "[b'x' * 200 + b'\\n']"))
    assert text.startswith(f"{errno.EFBIG} {path}: cannot write: File too large")
    assert "hint: free some space" in text
    assert path.read_bytes() == before
    append_lines(path, [b'{"b":2}\n'])
    assert path.read_bytes() == before + b'{"b":2}\n'


def test_a_full_disk_leaves_no_empty_file_behind(path):
    text = finish(start(LIMITED, path, 0, "append_lines", "[b'{}\\n']"))
    assert text.startswith(str(errno.EFBIG))
    assert not path.exists()


def test_a_full_disk_during_a_replacement_keeps_the_old_file(path):
    replace_file(path, b"old")
    text = finish(start(LIMITED, path, 100, "replace_file", "b'x' * 1000"))
    assert text.startswith(str(errno.EFBIG))
    assert path.read_bytes() == b"old"
    assert [file.name for file in path.parent.iterdir()] == ["x.jsonl"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_no_space_left(tmp_path):
    path = tmp_path / "x.jsonl"
    path.symlink_to("/dev/full")
    with pytest.raises(StorageError, match="No space left on device") as caught:
        append_lines(path, [b"{}\n"])
    assert caught.value.errno == errno.ENOSPC


def test_a_full_disk_loses_no_trace(dataset, make):
    script = """
        import resource, sys
        from flashinfer_bench.data import TraceSet
        from flashinfer_bench.errors import StorageError

        trace_set = TraceSet.from_path(sys.argv[1])
        traces = trace_set.traces["gemm_n8_k4"]
        limit = (trace_set.traces_path / "gemm" / "gemm_n8_k4.jsonl").stat().st_size + 400
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        added = 0
        try:
            for _ in range(10):
                trace_set.add_traces([traces[0]])
                added += 1
        except StorageError:
            assert len(traces) == 3 + added
            print(added)
    """
    from flashinfer_bench.data import TraceSet

    size = (dataset / "traces" / "gemm" / "gemm_n8_k4.jsonl").stat().st_size
    added = int(finish(start(script, dataset)))
    trace_set = TraceSet.from_path(dataset)
    assert len(trace_set.traces["gemm_n8_k4"]) == 3 + added
    assert (dataset / "traces" / "gemm" / "gemm_n8_k4.jsonl").stat().st_size <= size + 400
    trace_set.add_traces([make.trace(uuid="after")])
    assert TraceSet.from_path(dataset).traces["gemm_n8_k4"][-1].workload.uuid == "after"


def test_a_failed_sync_takes_the_lines_back(path, monkeypatch):
    append_lines(path, [b"{}\n"])

    def fail(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(storage.os, "fsync", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        append_lines(path, [b'{"b":2}\n'])
    assert path.read_bytes() == b"{}\n"


def test_an_interrupt_takes_the_lines_back(path, monkeypatch):
    append_lines(path, [b"{}\n"])

    def interrupt(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(storage.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        append_lines(path, [b'{"b":2}\n'])
    assert path.read_bytes() == b"{}\n"


def test_short_writes_are_continued(path, monkeypatch):
    real_write = os.write
    monkeypatch.setattr(storage.os, "write", lambda fd, data: real_write(fd, bytes(data[:3])))
    append_lines(path, [b'{"long": "line"}\n'])
    assert path.read_bytes() == b'{"long": "line"}\n'


# ---------------------------------------------------------------------------------- replacing files


def test_a_file_is_written_as_a_whole(path):
    replace_file(path, b"one")
    replace_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert [file.name for file in path.parent.iterdir()] == ["x.jsonl"]


def test_a_new_file_has_ordinary_permissions(path):
    before = os.umask(0o027)
    try:
        replace_file(path, b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_readers_see_the_old_content_or_the_new(path):
    contents = [bytes([letter]) * 100_000 for letter in b"ab"]
    replace_file(path, contents[0])
    done = threading.Event()

    def write():
        for number in range(30):
            replace_file(path, contents[number % 2])
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not done.is_set():
        assert path.read_bytes() in contents
    thread.join()


def test_a_folder_in_the_place_of_the_file(path):
    path.mkdir(parents=True)
    with pytest.raises(StorageError, match="Is a directory"):
        replace_file(path, b"")
    with pytest.raises(StorageError, match="Is a directory"):
        append_lines(path, [b"{}\n"])


def test_very_long_names(tmp_path):
    path = tmp_path / ("x" * 245 + ".json")
    replace_file(path, b"{}")
    assert path.read_bytes() == b"{}"
