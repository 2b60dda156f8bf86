"""Contents by their SHA-256: what a node has once, it is not sent again."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections import OrderedDict, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashinfer_bench import env
from flashinfer_bench.data.json_codec import to_json
from flashinfer_bench.data.storage import sha256_of
from flashinfer_bench.errors import RunnerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pydantic import BaseModel

CHUNK = 64 << 20
_HELD = 1 << 30  # bytes that a driver keeps in Ray's object store for the next node
_KEPT_S = 7 * 86400.0
_READ = 4 << 20


def digest_of(data: bytes) -> str:
    """Return the name of a content."""
    return hashlib.sha256(data).hexdigest()


def _pid_of(folder: Path) -> int:
    return int(folder.name.partition("-")[0])


class NodeStore:
    """The contents that a node has, in ``fleet`` of its cache; shared by its processes.

    Parameters
    ----------
    folder : Path, optional
        Where they are; by default in ``FIB_CACHE_PATH``.

    Attributes
    ----------
    root : Path
        A dataset folder of this process, with nothing but tensor files.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or env.cache_path() / "fleet"
        self._contents = self.folder / "contents"
        self._contents.mkdir(parents=True, exist_ok=True)
        roots = self.folder / "roots"
        self.root = roots / f"{os.getpid()}-{os.urandom(4).hex()}"
        self.root.mkdir(parents=True)
        self._tidy(roots)

    def _tidy(self, roots: Path) -> None:
        for each in roots.iterdir():  # of processes that were killed
            with suppress(ValueError, OSError):
                if not Path(f"/proc/{_pid_of(each)}").exists():
                    shutil.rmtree(each, ignore_errors=True)
        oldest = time.time() - _KEPT_S
        for each in self._contents.iterdir():
            with suppress(OSError):
                if each.stat().st_mtime < oldest:
                    each.unlink()

    def path(self, digest: str) -> Path:
        """Return where a content is, or would be."""
        return self._contents / digest

    def has(self, digest: str) -> bool:
        """Return whether it is there, and mark it as used."""
        with suppress(OSError):
            os.utime(self.path(digest))
            return True
        return False

    def read(self, digest: str) -> bytes:
        """Return a content that is there."""
        return self.path(digest).read_bytes()

    def add(self, digest: str, chunks: Iterable[bytes]) -> None:
        """Keep a content.

        Raises
        ------
        RunnerError
            If it is not what its name says.
        """
        path = self.path(digest)
        part = path.with_name(f".{digest}-{os.getpid()}-{threading.get_ident()}")
        found = hashlib.sha256()
        try:
            with part.open("xb") as file:
                for chunk in chunks:
                    found.update(chunk)
                    file.write(chunk)
            if found.hexdigest() != digest:
                raise RunnerError(f"what arrived is not {digest}, but {found.hexdigest()}")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def add_file(self, digest: str, path: Path) -> bool:
        """Keep the content of a file that all nodes may share; return whether it is that one."""
        with suppress(OSError):
            if sha256_of(path) == digest:
                with path.open("rb") as file:
                    self.add(digest, iter(lambda: file.read(_READ), b""))
                return True
        return False

    def provide(self, blobs: dict[str, str]) -> None:
        """Have tensor files in `root`: digests by path, whose contents are there."""
        for name, digest in blobs.items():
            path = self.root / name
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                os.link(self.path(digest), path)

    def close(self) -> None:
        """Remove `root`."""
        shutil.rmtree(self.root, ignore_errors=True)


class DriverContents:
    """What a driver sends, once to each node.

    Parameters
    ----------
    put : callable
        Puts bytes into Ray's object store, and returns a reference. Nodes get them from one
        another as well.
    """

    def __init__(self, put: Callable[[bytes], Any]) -> None:
        self._put = put
        self._records: dict[str, bytes] = {}
        self._files: dict[str, Path] = {}
        self._digests: dict[Any, str] = {}
        self._references: OrderedDict[str, tuple[int, list[Any]]] = OrderedDict()
        self._lock = threading.Lock()
        self._known: defaultdict[str, set[str]] = defaultdict(set)
        self._nodes: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def record(self, record: BaseModel) -> str:
        """Return the digest of a definition or a solution."""
        found = self._digests.get(id(record))
        if found is None:  # records live as long as the run
            data = to_json(record, indent=None).encode()
            found = digest_of(data)
            self._records[found] = data
            self._digests[id(record)] = found
        return found

    def file(self, path: Path) -> str:
        """Return the digest of a tensor file."""
        stat = path.stat()
        key = str(path), stat.st_size, stat.st_mtime_ns
        found = self._digests.get(key)
        if found is None:
            found = self._digests[key] = sha256_of(path)
            self._files[found] = path
        return found

    def send(
        self,
        node: str,
        digests: Iterable[str],
        missing: Callable[[dict[str, str]], Iterable[str]],
        keep: Callable[[str, list[Any]], None],
    ) -> None:
        """Have a node keep contents; other threads that send to it wait.

        Parameters
        ----------
        node : str
            Its id.
        digests : iterable of str
            What it needs.
        missing : callable
            Asks it which contents it lacks: given paths, which it may share, by digest.
        keep : callable
            Has it keep one: given the digest and references to its chunks.
        """
        with self._lock:
            turn = self._nodes[node]
        with turn:
            known = self._known[node]
            unknown = [one for one in digests if one not in known]
            if not unknown:
                return
            for digest in missing({one: str(self._files.get(one, "")) for one in unknown}):
                keep(digest, self._reference(digest))
            known.update(unknown)

    def forget(self, node: str) -> None:
        """Ask a node again what it has."""
        with self._lock:
            self._known.pop(node, None)

    def _reference(self, digest: str) -> list[Any]:
        with self._lock:
            held = self._references.get(digest)
            if held is not None:
                self._references.move_to_end(digest)
                return held[1]
        size, references = 0, []
        for chunk in self._chunks(digest):
            size += len(chunk)
            references.append(self._put(chunk))
        with self._lock:
            self._references[digest] = size, references
            while sum(one for one, _ in self._references.values()) > _HELD:
                self._references.popitem(last=False)
        return references

    def _chunks(self, digest: str) -> Iterator[bytes]:
        if digest in self._records:
            yield self._records[digest]
            return
        with self._files[digest].open("rb") as file:
            while block := file.read(CHUNK):
                yield block
