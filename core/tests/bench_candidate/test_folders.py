from __future__ import annotations

import inspect
import os
import sys

import pytest

from flashinfer_bench.bench.candidate.folders import remove_folder


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


def test_files_folders_and_odd_things(folder):
    (folder / "a/b/c").mkdir(parents=True)
    (folder / "a/b/file").write_text("x")
    (folder / "a/b" / ("n" * 255)).write_text("x")
    os.mkfifo(folder / "a/pipe")
    (folder / "line\nbreak").mkdir()
    remove_folder(folder)
    assert not folder.exists()


def test_links_are_not_followed(folder, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("keep")
    (folder / "inner").mkdir()
    (folder / "inner/to_folder").symlink_to(outside)
    (folder / "to_file").symlink_to(outside / "file")
    (folder / "to_nothing").symlink_to("nowhere")
    (folder / "loop").symlink_to(folder)
    remove_folder(folder)
    assert not folder.exists()
    assert (outside / "file").read_text() == "keep"


def test_deeper_than_a_path_can_be_long(folder):
    here = os.open(folder, os.O_RDONLY)
    name = "d" * 200
    for _ in range(60):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    remove_folder(folder)
    assert not folder.exists()


def test_deeper_than_recursion_goes(folder):
    folder.joinpath(*["d"] * 200).mkdir(parents=True)
    frames = len(inspect.stack())
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(frames + 60)
        remove_folder(folder)
    finally:
        sys.setrecursionlimit(limit)
    assert not folder.exists()


def test_without_permissions(folder):
    inner = folder / "inner"
    inner.mkdir()
    (inner / "file").write_text("x")
    inner.chmod(0)
    folder.chmod(0o500)
    remove_folder(folder)
    assert not folder.exists()
