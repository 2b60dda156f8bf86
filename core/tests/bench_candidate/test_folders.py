from __future__ import annotations

import os

import pytest

from flashinfer_bench.bench.candidate.folders import remove_folder


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


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


def test_without_permissions(folder):
    inner = folder / "inner"
    inner.mkdir()
    (inner / "file").write_text("x")
    inner.chmod(0)
    folder.chmod(0o500)
    remove_folder(folder)
    assert not folder.exists()
