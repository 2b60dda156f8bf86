"""Sources of a solution as files, and back."""

from __future__ import annotations

import pytest

from fib_agents import extract_solution_to_files, pack_solution_from_files
from fib_tests.scaled_add import solution_of
from flashinfer_bench.errors import ConfigError, DataError, StorageError, UnsafePathError

SPEC = {"language": "cuda", "target_hardware": ["cuda"], "entry_point": "main.cu::run"}
FILES = {"main.cu": '#include "a/b.h"\r\n', "a/b.h": "// é\n"}


def test_there_and_back(tmp_path) -> None:
    solution = solution_of(FILES, name="mine", **SPEC)
    folder = extract_solution_to_files(solution, tmp_path / "new" / "folder")
    assert folder == str(tmp_path / "new" / "folder")
    assert (tmp_path / "new/folder/a/b.h").read_bytes() == "// é\n".encode()
    (tmp_path / "new/folder/.hidden").write_bytes(b"\xff")
    (tmp_path / "new/folder/__pycache__").mkdir()
    (tmp_path / "new/folder/__pycache__/x.pyc").write_bytes(b"\xff")
    for spec in (solution.spec, SPEC):
        packed = pack_solution_from_files(folder, spec, "mine", solution.definition, "tester")
        assert packed.hash() == solution.hash()
        assert "destination_passing_style" not in packed.spec.model_fields_set
    described = pack_solution_from_files(folder, SPEC, "m", "d", "a", description="what it does")
    assert described.description == "what it does"


def test_files_are_replaced(tmp_path) -> None:
    extract_solution_to_files(solution_of(FILES, **SPEC), tmp_path)
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.write_text("kept")
    (tmp_path / "main.cu").unlink()
    (tmp_path / "main.cu").symlink_to(outside)
    extract_solution_to_files(solution_of({**FILES, "main.cu": "new"}, **SPEC), tmp_path)
    assert (tmp_path / "main.cu").read_text() == "new"
    assert outside.read_text() == "kept"


@pytest.mark.parametrize("path", ["x\n.h", "main.cu/x.h"])
def test_paths_stay_inside(tmp_path, path) -> None:
    with pytest.raises(UnsafePathError):
        extract_solution_to_files(solution_of({**FILES, path: "x"}, **SPEC), tmp_path / "in")


def test_folders_stay(tmp_path) -> None:
    (tmp_path / "main.cu").mkdir()
    with pytest.raises(StorageError, match=r"main\.cu cannot be replaced"):
        extract_solution_to_files(solution_of(FILES, **SPEC), tmp_path)
    (tmp_path / "main.cu").rmdir()
    (tmp_path / "a").write_text("x")
    with pytest.raises(UnsafePathError, match="is a file, not a folder"):
        extract_solution_to_files(solution_of(FILES, **SPEC), tmp_path)


def test_links_stay_inside(tmp_path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "a").symlink_to(outside)
    with pytest.raises(UnsafePathError, match="symbolic link"):
        extract_solution_to_files(solution_of(FILES, **SPEC), root)
    assert not [*outside.iterdir()]
    (root / "main.cu").write_text("x")
    (root / "a").unlink()
    (outside / "secret").write_text("x")
    (root / "linked.h").symlink_to(outside / "secret")
    with pytest.raises(UnsafePathError, match=r"linked\.h"):
        pack_solution_from_files(root, SPEC, "mine", "d", "me")


def test_what_cannot_be_packed(tmp_path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        pack_solution_from_files(tmp_path / "nowhere", SPEC, "mine", "d", "me")
    with pytest.raises(ConfigError, match="has no files"):
        pack_solution_from_files(tmp_path, SPEC, "mine", "d", "me")
    (tmp_path / "other.cu").write_text("x")
    with pytest.raises(DataError, match="entry file"):
        pack_solution_from_files(tmp_path, SPEC, "mine", "d", "me")
    (tmp_path / "main.cu").write_bytes(b"ab\xff")
    with pytest.raises(DataError, match="byte 2 is not UTF-8"):
        pack_solution_from_files(tmp_path, SPEC, "mine", "d", "me")
