"""Recorded calls become workloads of the format, each once."""

from __future__ import annotations

import os
import threading
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.repair import examine
from flashinfer_bench.tracing.store import Added, LostEntriesError, Store
from flashinfer_bench.tracing.store.identity import Ordinals, content_key, workload_uuid

torch = pytest.importorskip("torch")


def uuids(records):
    return [record["workload"]["uuid"] for record in records]


# ------------------------------------------------------------------------------- what is written


def test_a_workload_as_the_format_has_it(root, store, calls, records):
    assert store.add([calls.decode(3)]) == Added(1, 0)
    [record] = records(root)
    assert record["definition"] == "decode_h4"
    assert record["solution"] is None
    assert record["evaluation"] is None
    workload = record["workload"]
    assert workload["axes"] == {"batch": 3, "len_indptr": 4}
    assert workload["inputs"]["q"] == {"type": "random"}
    assert workload["inputs"]["scale"] == {"type": "scalar", "value": 0.5}
    indptr = workload["inputs"]["indptr"]
    assert indptr["type"] == "safetensors"
    assert indptr["tensor_key"] == "indptr"
    assert indptr["path"].startswith("./blob/workloads/gqa/decode_h4/decode_h4_")
    assert uuid.UUID(workload["uuid"]).version == 5


def test_the_dataset_reads_it_back(root, store, calls):
    store.add([calls.decode(2), calls.norm(5)])
    trace_set = TraceSet.from_path(root)
    [trace] = trace_set.workloads["decode_h4"]
    tensors = trace_set.get_workload_blob_tensor(trace.workload.inputs["indptr"].path)
    assert list(tensors) == ["indptr"]
    assert torch.equal(tensors["indptr"], torch.tensor([0, 1, 2], dtype=torch.int32))
    assert trace_set.workloads["norm/h8"][0].workload.axes == {"M": 5}
    assert examine(root).is_clean


def test_a_name_that_is_no_name_of_a_file(root, store, calls):
    store.add([calls.norm(1)])
    assert (root / "workloads" / "rmsnorm" / "norm%2Fh8.jsonl").is_file()


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (True, True),
        (7, 7),
        (0.25, 0.25),
        (torch.tensor(0.5), 0.5),
        (torch.tensor(3, dtype=torch.int32), 3),
        (torch.tensor([2.0]), 2.0),
        (float("inf"), "Infinity"),
    ],
)
def test_scalars_become_plain_numbers(root, store, calls, records, value, written):
    store.add([calls.decode(1, value)])
    found = records(root)[0]["workload"]["inputs"]["scale"]["value"]
    assert found == written
    assert type(found) is type(written)


def test_a_number_of_numpy(root, store, calls, records):
    numpy = pytest.importorskip("numpy")
    store.add([calls.decode(1, numpy.float32(0.5))])
    assert records(root)[0]["workload"]["inputs"]["scale"]["value"] == 0.5


def test_tensors_of_all_sorts_share_one_file(root, store, calls, records):
    base = torch.randn(8, 8)
    held = {
        "indptr": base.to(torch.int32)[:, 3],  # not contiguous
        "q": base[:2].to(torch.bfloat16).t(),
    }
    store.add([calls.decode(2, **held)])
    inputs = records(root)[0]["workload"]["inputs"]
    assert inputs["q"]["path"] == inputs["indptr"]["path"]
    tensors = TraceSet.from_path(root).get_workload_blob_tensor(inputs["q"]["path"])
    assert all(torch.equal(tensors[name], held[name]) for name in held)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bool, torch.int64, torch.float64])
def test_tensors_of_any_type(root, store, calls, dtype):
    tensor = torch.ones(4, 4).to(dtype)
    store.add([calls.decode(4, q=tensor, indptr=torch.empty(0, dtype=torch.int32))])
    assert examine(root).is_clean


def test_views_of_one_memory(root, store, calls, records):
    shared = torch.arange(8, dtype=torch.int32)
    store.add([calls.decode(3, indptr=shared[:4], q=shared)])
    path = records(root)[0]["workload"]["inputs"]["q"]["path"]
    tensors = TraceSet.from_path(root).get_workload_blob_tensor(path)
    assert torch.equal(tensors["indptr"], shared[:4])


def test_nothing_to_add(root, store):
    assert store.add([]) == Added(0, 0)
    assert not (root / "workloads").exists()


# ------------------------------------------------------------------------------------ each once


def test_a_restart_adds_nothing(root, store, calls, records):
    entries = [calls.decode(1), calls.decode(2), calls.norm(4)]
    assert store.add(entries) == Added(3, 0)
    again = Store(root, calls.DEFINITIONS)
    assert again.add(entries) == Added(0, 3)
    assert len(records(root)) == 3


def test_repetitions_are_told_apart_and_survive_a_restart(root, store, calls, records):
    assert store.add([calls.decode(1)] * 2) == Added(2, 0)
    assert store.add([calls.decode(1)]) == Added(1, 0)
    assert len(set(uuids(records(root)))) == 3
    again = Store(root, calls.DEFINITIONS)
    assert again.add([calls.decode(1)] * 2) == Added(0, 2)
    assert again.add([calls.decode(1)] * 2) == Added(1, 1)


def test_what_makes_a_workload_another_one(root, store, calls, records):
    entries = [
        calls.decode(1),
        calls.decode(2),
        calls.decode(1, 0.25),
        calls.decode(1, 1),
        calls.decode(1, 1.0),
        calls.decode(1, True),
        calls.decode(1, indptr=torch.tensor([0, 5], dtype=torch.int32)),
        calls.decode(1, indptr=torch.tensor([0, 1], dtype=torch.int64)),
    ]
    store.add(entries)
    other = Store(root, calls.DEFINITIONS)
    assert other.add(entries) == Added(0, len(entries))
    assert len(set(uuids(records(root)))) == len(entries)


def test_the_order_of_names_does_not_matter(root, store, calls):
    first = calls.decode(3, q=torch.zeros(3, 4))
    turned = calls.Call(
        first.def_name,
        dict(reversed(first.axes.items())),
        dict(reversed(first.held.items())),
    )
    store.add([first])
    assert Store(root, calls.DEFINITIONS).add([turned]) == Added(0, 1)


_AXES = st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), max_size=3)


@given(st.tuples(st.sampled_from("xy"), _AXES), st.tuples(st.sampled_from("xy"), _AXES))
def test_keys_are_equal_if_and_only_if_contents_are(one, two):
    assert (content_key(*one, {}) == content_key(*two, {})) == (one == two)


@given(st.lists(st.text(max_size=3), max_size=30), st.lists(st.text(max_size=3), max_size=30))
def test_ordinals_count_what_was_committed(committed, lost):
    ordinals = Ordinals()
    draft = ordinals.draft()
    assert [draft.next(key) for key in committed] == [
        committed[:place].count(key) for place, key in enumerate(committed)
    ]
    draft.commit()
    unused = ordinals.draft()
    for key in lost:
        unused.next(key)
    assert all(ordinals.draft().next(key) == committed.count(key) for key in committed + lost)


def test_ordinals_are_bounded():
    ordinals = Ordinals(most=10)
    for number in range(1000):
        draft = ordinals.draft()
        draft.next(str(number))
        draft.commit()
        assert len(ordinals._counts) <= 10


def test_the_uuid_of_a_content_is_the_same_for_ever():
    key = content_key("d", {"M": 1}, {})
    assert key == '["d",{"M":1},{}]'
    assert workload_uuid(key, 0) == "61fce237-d6dd-5c40-8397-ca55ce52c928"
    assert workload_uuid(key, 0) != workload_uuid(key, 1)


def test_the_file_is_changed_by_others_meanwhile(root, store, calls, records):
    store.add([calls.decode(1), calls.decode(2)])
    path = root / "workloads" / "gqa" / "decode_h4.jsonl"
    kept = path.read_text().splitlines(keepends=True)[1]
    path.write_text(kept)  # somebody has taken the first one out
    assert Store(root, calls.DEFINITIONS).add([calls.decode(1), calls.decode(2)]) == Added(1, 1)
    assert len(records(root)) == 2


# ---------------------------------------------------------------------------------- tensor files


def blobs(root):
    return sorted((root / "blob").rglob("*.safetensors"))


def test_equal_tensors_are_one_file(root, store, calls):
    store.add([calls.decode(1, 0.1), calls.decode(1, 0.2)])
    [path] = blobs(root)
    before = path.stat().st_ino
    Store(root, calls.DEFINITIONS).add([calls.decode(1, 0.3)])
    assert [one.stat().st_ino for one in blobs(root)] == [before]


def test_a_file_that_is_used_again_becomes_young(root, store, calls):
    store.add([calls.decode(1)])
    [path] = blobs(root)
    os.utime(path, (1000, 1000))
    store.add([calls.decode(1, 0.7)])
    assert path.stat().st_mtime > 1e9


@pytest.mark.parametrize("size", [0, 10])
def test_a_damaged_file_is_written_again(root, store, calls, size):
    store.add([calls.decode(1)])
    [path] = blobs(root)
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    store.add([calls.decode(1, 0.7)])
    assert path.read_bytes() == whole


def test_a_file_that_a_clean_up_takes_at_the_worst_moment(root, store, calls, monkeypatch):
    """What goes between its writing and the look-up under the lock is written once more."""
    from flashinfer_bench.tracing.store.known import KnownWorkloads

    refresh = KnownWorkloads.refresh

    def clean_up_first(known):
        for path in blobs(root):
            path.unlink()
        return refresh(known)

    monkeypatch.setattr(KnownWorkloads, "refresh", clean_up_first)
    store.add([calls.decode(1)])
    assert len(blobs(root)) == 1


def test_no_temporary_file_stays(root, store, calls):
    store.add([calls.decode(size) for size in range(1, 6)])
    names = {path.name for path in (root / "blob").rglob("*") if path.is_file()}
    assert all(name.startswith("decode_h4_") for name in names)


# -------------------------------------------------------------------------------- what is lost


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (lambda calls: calls.Call("nowhere", {}), "there is no definition 'nowhere'"),
        (lambda calls: calls.Call("norm/h8", {}), "without its axis 'M'"),
        (lambda calls: calls.Call("norm/h8", {"M": -1}), "axis 'M' of 'norm/h8' is -1"),
        (lambda calls: calls.Call("norm/h8", {"M": 1}, {"w": 1}), "no input of 'norm/h8' (x)"),
        (lambda calls: calls.Call("norm/h8", {"M": 1}, {"x": 1}), "is a number, not a tensor"),
        (lambda calls: calls.decode(1, scale=None), "scalar 'scale' of 'decode_h4' is a NoneType"),
        (lambda calls: calls.decode(1, scale=torch.ones(2)), "lost"),
        (
            lambda calls: calls.Call("decode_h4", {"batch": 1, "len_indptr": 2}),
            "its scalar 'scale'",
        ),
    ],
)
def test_one_bad_entry_costs_only_itself(root, store, calls, records, entry, message):
    with pytest.raises(LostEntriesError) as caught:
        store.add([calls.decode(1), entry(calls), calls.norm(2)])
    assert message in str(caught.value)
    assert caught.value.lost == 1
    assert caught.value.added == Added(2, 0)
    assert len(records(root)) == 2


def test_an_entry_that_raises_anything(root, store, calls, records):
    class Odd(calls.Call):
        def values(self):
            raise ZeroDivisionError("a tensor of a foreign program")

    with pytest.raises(LostEntriesError, match="a tensor of a foreign program"):
        store.add([Odd("norm/h8", {"M": 1}), calls.norm(2)])
    assert len(records(root)) == 1


def test_ctrl_c_is_no_loss_of_entries(root, store, calls):
    class Odd(calls.Call):
        def values(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.add([Odd("norm/h8", {"M": 1})])
    assert store.add([calls.norm(2)]) == Added(1, 0)


def test_definitions_may_come_later(root, calls):
    definitions = {}
    store = Store(root, definitions)
    with pytest.raises(LostEntriesError):
        store.add([calls.norm(1)])
    definitions.update(calls.DEFINITIONS)
    assert store.add([calls.norm(1)]) == Added(1, 0)


def test_a_closed_store_still_works(root, store, calls):
    store.add([calls.norm(1)])
    store.close()
    store.close()
    assert store.add([calls.norm(2)]) == Added(1, 0)


# ------------------------------------------------------------------------------------- threads


def test_threads_lose_nothing(root, store, calls, records):
    added = []

    def work(number):
        for size in range(20):
            added.append(store.add([calls.decode(size + 1, number / 8), calls.norm(size)]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(one.written for one in added) == len(records(root)) == 6 * 20 * 2
    assert len(set(uuids(records(root)))) == 6 * 20 * 2
    assert examine(root).is_clean
