"""Full disks, deleted and read-only datasets: what is there stays, what is lost is told."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.repair import examine
from flashinfer_bench.errors import StorageError
from flashinfer_bench.tracing.store import Added, LostEntriesError, Store


def lost(store, entries):
    with pytest.raises(LostEntriesError) as caught:
        store.add(entries)
    assert isinstance(caught.value, StorageError)
    return caught.value


# --------------------------------------------------------------------------------- a full disk

FULL = """
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = Store(root, DEFINITIONS)
    print(*store.add([norm(size) for size in range(10)]))
    size = (root / "workloads/rmsnorm/norm%2Fh8.jsonl").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
    big = decode(3, q=torch.zeros(50_000))
    for entries in ([norm(90), norm(91)], [big, decode(1)]):
        try:
            print(*store.add(entries))
        except LostEntriesError as error:
            print("lost", error.lost, *error.added)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(*store.add([norm(90), norm(91), big]))
"""


def test_a_file_that_may_not_grow(root, child, records):
    out = child.run(FULL, root).splitlines()
    assert out == ["10 0", "lost 2 0 0", "lost 1 1 0", "3 0"]
    assert len(records(root)) == 14
    assert examine(root).issues == ()


TINY = """
    from flashinfer_bench.data import TraceSet
    from flashinfer_bench.data.repair import examine
    lost, store = 0, Store(root, DEFINITIONS)
    for number in range(1, 9):
        try:
            store.add([decode(number, q=torch.full((1000, 1000), float(number))), norm(number)])
        except LostEntriesError as error:
            assert "space" in str(error), error
            lost += error.lost
    assert examine(root).issues == (), examine(root).issues
    print(lost, sum(map(len, TraceSet.from_path(root).workloads.values())))
"""


def test_a_disk_that_is_really_full(root, child, tmp_path):
    """Eight tensors of 4 MB do not fit into 16 MB; no half of a file stays."""
    disk = tmp_path / "disk"
    disk.mkdir()
    shell = f'mount -t tmpfs -o size=16m none {disk} && cp -r {root}/. {disk} && exec "$@"'
    prefix = ["unshare", "-rm", "sh", "-c", shell, "sh"]
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], check=False).returncode:
        pytest.skip("no file system can be mounted without privileges here")
    lost_ones, found = map(int, child.run(TINY, disk, prefix=prefix).split())
    assert lost_ones >= 4
    assert lost_ones + found == 16


# ------------------------------------------------------------------------------ a dataset that went


def test_a_deleted_dataset_is_not_made_again(root, store, calls):
    store.add([calls.decode(1)])
    shutil.rmtree(root)
    error = lost(store, [calls.decode(1), calls.norm(1)])
    assert error.lost == 2
    assert "no such dataset" in str(error)
    assert not root.exists()


def test_a_dataset_that_comes_back(root, store, calls, records):
    store.add([calls.decode(1), calls.norm(1)])
    shutil.rmtree(root)
    lost(store, [calls.decode(2)])
    root.mkdir()
    assert store.add([calls.decode(1), calls.norm(2)]) == Added(2, 0)
    assert len(records(root)) == 2


def test_a_file_in_place_of_the_dataset(root, store, calls):
    shutil.rmtree(root)
    root.write_text("")
    assert lost(store, [calls.decode(1)]).lost == 1


@pytest.mark.parametrize("folder", ["workloads", "workloads/gqa", "blob", "blob/workloads/gqa"])
def test_a_file_in_place_of_a_folder(root, store, calls, records, folder):
    (root / folder).parent.mkdir(parents=True, exist_ok=True)
    (root / folder).write_text("")
    error = lost(store, [calls.decode(1), calls.decode(2)])
    assert error.lost == 2
    (root / folder).unlink()
    assert store.add([calls.decode(1), calls.decode(2)]) == Added(2, 0)
    assert len(records(root)) == 2


def test_a_folder_in_place_of_the_file(root, store, calls):
    (root / "workloads" / "rmsnorm" / "norm%2Fh8.jsonl").mkdir(parents=True)
    error = lost(store, [calls.norm(1), calls.decode(1)])
    assert error.lost == 1
    assert error.added == Added(1, 0)


def test_what_others_wrote_badly(root, store, calls):
    """A torn line is moved aside, a broken one stays; neither costs an entry."""
    store.add([calls.norm(1)])
    path = root / "workloads" / "rmsnorm" / "norm%2Fh8.jsonl"
    with path.open("ab") as file:
        file.write(b"broken\n" + b'{"definition": "norm')
    assert store.add([calls.norm(2)]) == Added(1, 0)
    assert [line[:6] for line in path.read_bytes().splitlines()][1] == b"broken"
    trace_set = TraceSet.from_path(root, on_error="collect")
    assert len(trace_set.workloads["norm/h8"]) == 2


# ---------------------------------------------------------------------------- a read-only dataset

READ_ONLY = """
    import os
    if os.getuid() == 0:  # root may write anywhere
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        Store(root, DEFINITIONS).add([decode(1), norm(1)])
    except LostEntriesError as error:
        print(error.lost, error)
"""


def test_a_read_only_dataset(root, child, calls):
    Store(root, calls.DEFINITIONS).add([calls.norm(7)])
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    for path in root.rglob("*"):
        if path.is_file():
            path.chmod(0o444)
    for path in folders:
        path.chmod(0o555)
    outer = [path for path in root.parents if path.stat().st_uid == os.getuid()]
    modes = [(path, path.stat().st_mode) for path in outer]
    for path in outer[: len(outer) if os.getuid() == 0 else 0]:
        path.chmod(path.stat().st_mode | 0o055)
    try:
        out = child.run(READ_ONLY, root)
    finally:
        for path in folders:
            path.chmod(0o755)
        for path, mode in modes:
            path.chmod(mode)
    assert out.startswith("2 2 recorded workloads are lost")
    assert "Permission denied" in out or "Read-only" in out
    assert len(list(root.rglob("*.jsonl"))) == 1
