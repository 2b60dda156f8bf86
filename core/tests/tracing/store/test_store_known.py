"""What a file of workloads holds is known without reading all of it again and again."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.data.storage import append_lines, replace_file
from flashinfer_bench.tracing.store.known import KnownWorkloads


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.jsonl"


def line(uuid):
    return json.dumps({"definition": "d", "workload": {"axes": {}, "inputs": {}, "uuid": uuid}})


def write(path, *uuids):
    path.write_text("".join(line(uuid) + "\n" for uuid in uuids))


def test_no_file(path):
    assert KnownWorkloads(path).refresh() == set()


def test_what_was_appended(path):
    known = KnownWorkloads(path)
    write(path, "a")
    assert known.refresh() == {"a"}
    append_lines(path, [line("b").encode() + b"\n"])
    assert known.refresh() == {"a", "b"}


def test_only_what_was_appended_is_read(path):
    known = KnownWorkloads(path)
    write(path, *(f"{number}" for number in range(100)))
    known.refresh()
    read = []
    decode = known._decode
    known._decode = lambda text: read.append(text) or decode(text)
    known.refresh()
    assert read == []
    append_lines(path, [line("new").encode() + b"\n"])
    assert "new" in known.refresh()
    assert len(read) == 1


def test_a_file_that_was_replaced(path):
    known = KnownWorkloads(path)
    write(path, "a", "b")
    known.refresh()
    replace_file(path, line("b").encode() + b"\n" + line("c").encode() + b"\n")
    assert known.refresh() == {"b", "c"}


def test_a_file_that_was_rewritten_in_place(path):
    known = KnownWorkloads(path)
    write(path, "a", "b")
    known.refresh()
    write(path, "c", "d")
    assert known.refresh() == {"c", "d"}
    write(path, "eeeeeeeeeeeeeee", "f", "g")  # and longer than before
    assert known.refresh() == {"eeeeeeeeeeeeeee", "f", "g"}


def test_a_file_that_shrank_or_went(path):
    known = KnownWorkloads(path)
    write(path, "a", "b")
    known.refresh()
    write(path, "a")
    assert known.refresh() == {"a"}
    path.unlink()
    assert known.refresh() == set()


def test_an_unfinished_line_is_read_again(path):
    known = KnownWorkloads(path)
    whole = line("b")
    path.write_text(line("a") + "\n" + whole[:30])
    assert known.refresh() == {"a"}
    path.write_text(line("a") + "\n" + whole)
    assert known.refresh() == {"a", "b"}  # an append will end the line
    append_lines(path, [line("c").encode() + b"\n"])
    assert known.refresh() == {"a", "b", "c"}


def test_lines_that_are_no_workloads(path):
    path.write_text("\n".join(["", "broken", "[1]", "{}", '{"workload": {"axes": {}}}', line("a")]))
    assert KnownWorkloads(path).refresh() == {"a"}


def test_bytes_that_are_no_text(path):
    path.write_bytes(b"\xff\xfe\n" + line("a").encode() + b"\n")
    assert KnownWorkloads(path).refresh() == {"a"}


def test_one_document_over_several_lines(path):
    known = KnownWorkloads(path)
    path.write_text(json.dumps(json.loads(line("a")), indent=2))
    assert known.refresh() == {"a"}
    append_lines(path, [line("b").encode() + b"\n"])
    assert known.refresh() == {"a", "b"}


def test_a_folder_in_its_place_is_an_error(path):
    path.mkdir()
    with pytest.raises(OSError, match=r"x\.jsonl"):
        KnownWorkloads(path).refresh()


_NAMES = st.lists(st.sampled_from("abcdefgh"), max_size=4)
_STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "replace", "rewrite", "cut", "unlink"]), _NAMES),
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(_STEPS)
def test_whatever_happens_to_the_file_it_is_as_if_read_anew(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("known") / "x.jsonl"
    known = KnownWorkloads(path)
    for number, (what, names) in enumerate(steps):
        if what == "rewrite":  # in place: only other last lines are noticed
            names = [*names, f"of step {number}"]
        lines = [line(name).encode() + b"\n" for name in names]
        if what == "append":
            append_lines(path, lines)
        elif what == "replace":
            replace_file(path, b"".join(lines))
        elif what == "rewrite":
            path.write_bytes(b"".join(lines))
        elif what == "cut" and path.exists():
            os.truncate(path, path.stat().st_size // 2)
        elif what == "unlink":
            path.unlink(missing_ok=True)
        assert known.refresh() == KnownWorkloads(path).refresh()
