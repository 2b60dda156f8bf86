"""Writing survives crowds, crashes and full disks. Real processes, real files, real signals."""

from __future__ import annotations

import errno
import json
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data import storage
from flashinfer_bench.data.storage import append_lines, replace_file
from flashinfer_bench.errors import StorageError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "x.jsonl"


def test_a_broken_last_line_stays_a_line_of_its_own(path):
    path.parent.mkdir()
    path.write_bytes(b"{broken")
    append_lines(path, [b'{"b":2}\n'])
    assert path.read_bytes() == b'{broken\n{"b":2}\n'


@pytest.mark.parametrize("size", [10, storage._BLOCK - 1, storage._BLOCK, 3 * storage._BLOCK + 7])
def test_torn_lines_of_any_length_are_moved_aside(path, size, caplog):
    path.parent.mkdir()
    torn = b'{"x": "' + b"y" * size
    path.write_bytes(b"{}\n" + torn)
    append_lines(path, [b"{}\n"])
    assert path.read_bytes() == b"{}\n{}\n"
    assert path.with_name("x.jsonl.torn").read_bytes() == torn + b"\n"
    assert "moved an unfinished last line" in caplog.text


_RECORDS = st.lists(
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9)), max_size=4
)


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


def test_a_full_disk_during_an_append_keeps_what_was_there(path, python):
    append_lines(path, [b'{"a":1}\n'])
    before = path.read_bytes()
    text = python.run(LIMITED, path, len(before) + 50, "append_lines", "[b'x' * 200 + b'\\n']")
    assert text.startswith(f"{errno.EFBIG} {path}: cannot write: File too large")
    assert "hint: free some space" in text
    assert path.read_bytes() == before
    append_lines(path, [b'{"b":2}\n'])
    assert path.read_bytes() == before + b'{"b":2}\n'


def test_a_full_disk_during_a_replacement_keeps_the_old_file(path, python):
    replace_file(path, b"old")
    text = python.run(LIMITED, path, 100, "replace_file", "b'x' * 1000")
    assert text.startswith(str(errno.EFBIG))
    assert path.read_bytes() == b"old"
    assert [file.name for file in path.parent.iterdir()] == ["x.jsonl"]


@pytest.mark.parametrize(
    ("cause", "seen"),
    [(OSError(errno.EIO, "Input/output error"), StorageError), (KeyboardInterrupt(), None)],
)
def test_a_failed_sync_or_an_interrupt_takes_the_lines_back(path, monkeypatch, cause, seen):
    append_lines(path, [b"{}\n"])

    def fail(descriptor):
        raise cause

    monkeypatch.setattr(storage.os, "fsync", fail)
    with pytest.raises(seen or KeyboardInterrupt):
        append_lines(path, [b'{"b":2}\n'])
    assert path.read_bytes() == b"{}\n"


def test_short_writes_are_continued(path, monkeypatch):
    real_write = os.write
    monkeypatch.setattr(storage.os, "write", lambda fd, data: real_write(fd, bytes(data[:3])))
    append_lines(path, [b'{"long": "line"}\n'])
    assert path.read_bytes() == b'{"long": "line"}\n'
