"""A stand-in for the Hugging Face hub: its endpoints for reading a dataset, over HTTP."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

Files = dict[str, bytes]


class Hub(ThreadingHTTPServer):
    """Serves revisions of datasets; remembers what was asked for.

    Attributes
    ----------
    commits : dict
        Files by repository and commit.
    branches : dict
        Commit by repository and branch.
    gated, broken : set
        Repositories that nobody may read, and paths that answer with an error of the server.
    asked : list of str
        Paths of files that were sent.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.commits: dict[tuple[str, str], Files] = {}
        self.branches: dict[tuple[str, str], str] = {}
        self.gated: set[str] = set()
        self.broken: set[str] = set()
        self.asked: list[str] = []

    @property
    def endpoint(self) -> str:
        """What HF_ENDPOINT is to be."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def publish(self, repo: str, files: Files, branch: str = "main") -> str:
        """Add a commit to a branch; return its name."""
        text = repr(sorted(files.items())).encode()
        commit = hashlib.sha1(text).hexdigest()
        self.commits[repo, commit] = dict(files)
        self.branches[repo, branch] = commit
        return commit

    def find(self, repo: str, revision: str) -> tuple[str, Files] | None:
        """Return the commit that a revision stands for, and its files."""
        commit = self.branches.get((repo, revision), revision)
        files = self.commits.get((repo, commit))
        return None if files is None else (commit, files)


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *values: Any) -> None:
        """Say nothing."""

    def _answer(self, *, with_body: bool) -> None:
        url = urlsplit(self.path)
        parts = unquote(url.path).strip("/").split("/")
        if parts[0] == "api":
            self._about(parts[1:], parse_qs(url.query))
        elif parts[0] == "datasets" and "resolve" in parts:
            at = parts.index("resolve")
            self._file("/".join(parts[1:at]), parts[at + 1], "/".join(parts[at + 2 :]), with_body)
        else:
            self._refuse(404, "EntryNotFound")

    def _about(self, parts: list[str], query: dict[str, list[str]]) -> None:
        kind = next((word for word in ("revision", "tree") if word in parts), "")
        at = parts.index(kind) if kind else len(parts)
        repo = "/".join(parts[1:at])
        if repo in self.server.gated:
            return self._refuse(403, "GatedRepo")
        if not any(known == repo for known, _ in self.server.commits):
            return self._refuse(404, "RepoNotFound")
        found = self.server.find(repo, parts[at + 1] if kind else "main")
        if found is None:
            return self._refuse(404, "RevisionNotFound")
        commit, files = found
        if kind == "tree":
            return self._json([_entry(path, data) for path, data in sorted(files.items())])
        siblings = [{"rfilename": path} for path in sorted(files)]
        return self._json({"id": repo, "sha": commit, "siblings": siblings, "private": False})

    def _file(self, repo: str, revision: str, path: str, with_body: bool) -> None:
        found = self.server.find(repo, revision)
        if repo in self.server.gated:
            return self._refuse(403, "GatedRepo")
        if found is None:
            return self._refuse(404, "RevisionNotFound")
        commit, files = found
        if path not in files:
            return self._refuse(404, "EntryNotFound")
        if path in self.server.broken:
            return self._refuse(501, "")  # of the 500s one that the library does not try again
        if with_body:
            self.server.asked.append(path)
        etag = hashlib.sha256(files[path]).hexdigest()
        headers = {"X-Repo-Commit": commit, "ETag": f'"{etag}"'}
        return self._send(200, files[path], "application/octet-stream", headers)

    def _refuse(self, status: int, code: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": code} if code else {}
        self._send(status, b'{"error": "no"}', "application/json", headers)

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), "application/json", {})

    def _send(self, status: int, body: bytes, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _entry(path: str, data: bytes) -> dict[str, Any]:
    oid = hashlib.sha1(data).hexdigest()
    return {"type": "file", "oid": oid, "size": len(data), "path": path}


@contextmanager
def hub() -> Iterator[Hub]:
    """Serve on a free port of this machine."""
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
