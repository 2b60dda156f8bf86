"""Archives that strangers made: nothing leaves the folder, nothing is too large, all is named."""

from __future__ import annotations

import gzip
import io
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_datasets.transfer.exporting import export_archive
from fib_datasets.transfer.importing import import_dataset
from fib_datasets.transfer.unpack import Limits, unpack_archive
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import DataError, FibError, StorageError, UnsafePathError


@pytest.fixture
def target(tmp_path):
    folder = tmp_path / "inner" / "target"
    folder.mkdir(parents=True)
    return folder


def member(name, kind, **fields):
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info


NAMES = [
    *("/etc/passwd", "../x", "a/../../x", "a/..", "..", "..\\x", "C:\\x", "C:x", "\\\\host\\share"),
    *("a\nb", "a\x1b[31m", "d/" * 40 + "x", "n" * 2000, "b\udcff"),
]
LINKS = (tarfile.SYMTYPE, tarfile.LNKTYPE)
DEVICES = (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
NO_FILES = [
    *(member("l", kind, linkname=to) for kind in LINKS for to in ("/etc", "fine")),
    *(member("d", kind, devmajor=1, devminor=5) for kind in DEVICES),
]


@pytest.mark.parametrize(
    ("entry", "told"),
    [*((name, "name") for name in NAMES), *((info, "only files are allowed") for info in NO_FILES)],
)
def test_entries_that_are_not_allowed(make_tar, target, tmp_path, tree, entry, told):
    archive = make_tar(tmp_path / "a.tgz", ("fine", b"x"), (entry, b"evil"), ("l/x", b"evil"))
    with pytest.raises(UnsafePathError, match=told):
        unpack_archive(archive, target)
    assert set(tree(tmp_path)) == {"a.tgz", "inner/target/fine"}


def test_folders_and_a_leading_dot_are_fine(make_tar, target, tmp_path):
    folders = [(member(name, tarfile.DIRTYPE), b"") for name in ("./", "./a")]
    archive = make_tar(tmp_path / "a.tgz", *folders, ("./a/b", b"content"))
    assert unpack_archive(archive, target) == 1
    assert (target / "a/b").read_bytes() == b"content"


@pytest.mark.parametrize("names", [("a", "a"), ("a", "./a"), ("a", "a/b"), ("a/b", "a")])
def test_two_entries_of_one_name(make_tar, target, tmp_path, names):
    archive = make_tar(tmp_path / "a.tgz", *((name, b"x") for name in names))
    with pytest.raises(DataError, match="two entries have the name"):
        unpack_archive(archive, target)


def test_a_bomb_is_stopped_early(make_tar, target, tmp_path):
    archive = make_tar(tmp_path / "a.tgz", ("zeros", bytes(64 << 20)))
    assert archive.stat().st_size < 100_000
    with pytest.raises(DataError, match=r"unpacks to more than 1,048,576 bytes[\s\S]*--max-gib"):
        unpack_archive(archive, target, Limits(total_bytes=1 << 20))
    assert sum(path.stat().st_size for path in target.rglob("*")) <= 1 << 20


def test_a_large_json_file_is_not_even_written(make_tar, target, tmp_path):
    archive = make_tar(tmp_path / "a.tgz", ("a.json", bytes(5000)))
    with pytest.raises(DataError, match="too many for a JSON file"):
        unpack_archive(archive, target, Limits(json_bytes=4096))
    assert list(target.iterdir()) == []


def test_a_header_cannot_fill_the_memory(target, tmp_path):
    """An extended header may claim any size, and tarfile reads it at once."""
    archive = tmp_path / "a.tgz"
    with gzip.open(archive, "wb") as file:
        file.write(member("x", tarfile.XHDTYPE, size=512 << 20).tobuf())
        for _ in range(512):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    with pytest.raises(DataError, match="a header of"):
        unpack_archive(archive, target)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20


def test_sparse_files_are_refused(target, tmp_path):
    """A few bytes may claim to be terabytes of zeros."""
    header = bytearray(member("x", tarfile.GNUTYPE_SPARSE).tobuf(tarfile.GNU_FORMAT))
    header[386:398], header[398:410] = b"00000000000\0", b"00000000000\0"
    header[483:495] = b"77777777777\0"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    archive = tmp_path / "a.tar"
    archive.write_bytes(bytes(header) + bytes(1024))
    with pytest.raises(UnsafePathError, match="not a regular file"):
        unpack_archive(archive, target)


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04zip", b"plain text", bytes(1024), b"\x1f\x8b", b"\x1f\x8bxxxxxxx"]
)
def test_what_is_no_archive(target, tmp_path, content):
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.tar\.gz: "):
        unpack_archive(archive, target)


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar"])
def test_every_cut_is_noticed(with_blobs, tmp_path, suffix):
    whole = export_archive(TraceSet.from_path(with_blobs), tmp_path / f"a{suffix}").archive
    data = whole.read_bytes()
    end = len(data.rstrip(b"\0")) if suffix == ".tar" else len(data)
    for number, size in enumerate(range(0, end, max(1, end // 60))):
        whole.write_bytes(data[:size])
        with pytest.raises(DataError):
            import_dataset(whole, tmp_path / f"new{number}")
        assert not (tmp_path / f"new{number}").exists()


@pytest.mark.parametrize("text", [b"{", b'{"format": "flashinfer-trace-archive", "version": 1}'])
def test_a_broken_manifest(make_tar, target, tmp_path, text):
    with pytest.raises(DataError):
        unpack_archive(make_tar(tmp_path / "a.tgz", ("fib-archive.json", text)), target)


def test_a_full_disk_is_a_storage_error_and_leaves_nothing(with_blobs, tmp_path, monkeypatch):
    archive = export_archive(TraceSet.from_path(with_blobs), tmp_path / "a.tar").archive
    opened = Path.open

    def fail(self, mode="r", *args, **options):
        if mode == "xb":
            raise OSError(28, "No space left on device")
        return opened(self, mode, *args, **options)

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(StorageError, match="No space left"):
        import_dataset(archive, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob(".*"))


def test_a_dataset_below_other_folders_is_found(with_blobs, tmp_path, tree):
    """As in the archives that hosts of repositories make."""
    archive = tmp_path / "a.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(with_blobs, "repo-main/dataset")
        tar.addfile(tarfile.TarInfo("repo-main/README.md"))
    import_dataset(archive, tmp_path / "one")
    import_dataset(with_blobs, tmp_path / "two")
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


# -------------------------------------------------------------------------------------------- fuzz


@pytest.fixture(scope="module")
def sound_tar(tmp_path_factory):
    root = tmp_path_factory.mktemp("fuzz")
    (root / "definitions").mkdir()
    (root / "definitions/a.json").write_text("{}")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(root / "definitions", "definitions")
        long = tarfile.TarInfo("ü" * 60 + "/" + "x" * 120)
        tar.addfile(long, io.BytesIO())
        tar.addfile(tarfile.TarInfo("last"))
    return buffer.getvalue()


def check(data, folder, outside):
    """Unpack anything: a named error or files in the folder, and nothing anywhere else."""
    archive = folder / "a"
    archive.write_bytes(data)
    target = folder / "target"
    target.mkdir()
    before = set(outside.rglob("*"))
    error = None
    try:
        unpack_archive(archive, target, Limits(files=50, total_bytes=1 << 20))
    except FibError as raised:
        error = raised
    assert error is None or isinstance(error, StorageError) or str(archive) in str(error)
    new = set(outside.rglob("*")) - before
    assert all(path.is_relative_to(target) for path in new)
    assert all(path.is_dir() or path.is_file() for path in new)
    assert not any(path.is_symlink() for path in new)
    assert sum(path.stat().st_size for path in new if path.is_file()) <= 1 << 20


@given(edits=st.lists(st.tuples(st.integers(0, 8191), st.binary(max_size=12)), max_size=6))
def test_damaged_tars(sound_tar, tmp_path_factory, edits):
    data = bytearray(sound_tar)
    for place, text in edits:
        data[place : place + len(text)] = text
    folder = tmp_path_factory.mktemp("case")
    check(bytes(data), folder, folder)


FIELDS = {"name": (0, 100), "size": (124, 12), "type": (156, 1), "link": (157, 100)}


@given(
    changes=st.dictionaries(
        st.tuples(st.integers(0, 5), st.sampled_from(sorted(FIELDS))),
        st.one_of(
            st.binary(max_size=12),
            st.sampled_from([b"../../x", b"/tmp/x", b"77777777777", b"\x80" + b"\xff" * 11]),
            st.sampled_from([b"1", b"2", b"3", b"5", b"6", b"L", b"K", b"S", b"x", b"g", b"V"]),
        ),
        max_size=4,
    )
)
def test_headers_with_good_check_sums_and_bad_fields(sound_tar, tmp_path_factory, changes):
    data = bytearray(sound_tar)
    starts = [at for at in range(0, len(data), 512) if data[at + 257 : at + 262] == b"ustar"]
    for (index, field), value in changes.items():
        at = starts[index % len(starts)]
        offset, width = FIELDS[field]
        data[at + offset : at + offset + width] = value[:width].ljust(width, b"\0")
    for at in starts:
        data[at + 148 : at + 156] = b" " * 8
        data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    folder = tmp_path_factory.mktemp("case")
    check(bytes(data), folder, folder)
