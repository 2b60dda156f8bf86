"""A solution as a folder and back: exactly the same, and never outside the folder."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fib_datasets.transfer.packing import pack_solution, unpack_solution
from flashinfer_bench.data import Solution, save_json_file
from flashinfer_bench.errors import DataError, UnsafePathError


@pytest.fixture
def file(make, tmp_path):
    sources = [
        {"path": "main.py", "content": "def run(a, b):\r\n    return a\n"},
        {"path": "lib/kernel.cu", "content": "// ü\n\0\ufeff"},
    ]
    path = tmp_path / "solution.json"
    save_json_file(make.solution(sources=sources, description="Näive"), path)
    return path


@pytest.fixture
def folder(file, tmp_path):
    return unpack_solution(file, tmp_path / "folder").path


def packed(folder, tmp_path):
    return pack_solution(folder, tmp_path / "packed.json")


def test_what_is_in_the_folder(folder, tree):
    files = tree(folder)
    assert set(files) == {"solution.json", "sources/main.py", "sources/lib/kernel.cu"}
    assert files["sources/main.py"] == b"def run(a, b):\r\n    return a\n"
    metadata = json.loads(files["solution.json"])
    assert metadata["sources"] == [{"path": "main.py"}, {"path": "lib/kernel.cu"}]
    assert metadata["name"] == "alice_v1"
    assert "return a" not in files["solution.json"].decode()


def test_new_files_are_taken_in(folder, tmp_path):
    (folder / "sources/lib/more.cuh").write_text("new")
    (folder / "sources/.hidden").write_text("no")
    (folder / "sources/__pycache__").mkdir()
    (folder / "sources/__pycache__/main.pyc").write_bytes(b"\xff")
    done = packed(folder, tmp_path)
    assert done.added == ("lib/more.cuh",)
    assert [one.path for one in done.solution.sources] == [
        "main.py",
        "lib/kernel.cu",
        "lib/more.cuh",
    ]


def test_sources_that_are_gone_or_no_text(folder, tmp_path):
    (folder / "sources/main.py").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="byte 0 is not UTF-8"):
        packed(folder, tmp_path)
    (folder / "sources/main.py").unlink()
    with pytest.raises(DataError, match=r"no file 'main\.py' in sources") as caught:
        packed(folder, tmp_path)
    assert caught.value.field == "sources.0"
    assert not (tmp_path / "packed.json").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "must be an object"),
        ('{"sources": 1}', "must be a list"),
        ('{"sources": [{"path": 1}]}', "needs a path"),
        ('{"sources": [{"path": "main.py", "file": 3}]}', "not a file name"),
        ('{"sources": [{"path": "main.py"}]}', "name: this field is missing"),
    ],
)
def test_broken_metadata(folder, tmp_path, text, message):
    (folder / "solution.json").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        packed(folder, tmp_path)
    assert caught.value.path == folder / "solution.json"


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "link", "a/../../../secret"])
def test_paths_stay_inside(folder, tmp_path, name):
    (tmp_path / "secret").write_text("secret")
    (folder / "secret").write_text("secret")
    (folder / "sources/link").symlink_to(tmp_path / "secret")
    for field in ("path", "file"):
        metadata = {"sources": [{"path": "main.py", field: name}]}
        (folder / "solution.json").write_text(json.dumps(metadata))
        with pytest.raises(UnsafePathError, match="is outside sources"):
            packed(folder, tmp_path)


def test_outputs_that_are_refused(folder, tmp_path, tree):
    before = tree(tmp_path)
    for out in (folder / "sources/out.json", folder / "solution.json"):
        with pytest.raises(UnsafePathError, match="is among the packed"):
            pack_solution(folder, out)
    assert tree(tmp_path) == before


# ---------------------------------------------------------------------------------------- names


segments = st.text(
    st.one_of(
        st.sampled_from("abAB01_-. %:*?\"<>|\\'ü\u202e\n\t~"),
        st.characters(exclude_characters="/\0", exclude_categories=("Cs",)),
    ),
    min_size=1,
    max_size=12,
)
paths = st.lists(
    st.lists(
        st.one_of(segments, st.sampled_from(["a", "A", "b", "."])), min_size=1, max_size=4
    ).map("/".join),
    min_size=1,
    max_size=6,
)
contents = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


@given(paths=paths, data=st.data())
def test_any_solution_comes_back_exactly(paths, data, make, tmp_path_factory):
    sources = [{"path": path, "content": data.draw(contents)} for path in dict.fromkeys(paths)]
    sources[0]["content"] += "x"
    entry = f"{sources[0]['path']}::run"
    record = make.solution_record(
        data.draw(segments), author=data.draw(segments), spec={"entry_point": entry}
    )
    try:
        solution = Solution(**{**record, "sources": sources})
    except ValueError:
        return  # not a solution: absolute, two of one path, and so on
    place = tmp_path_factory.mktemp("case")
    save_json_file(solution, place / "a.json")
    unpack_solution(place / "a.json", place / "folder")
    done = pack_solution(place / "folder", place / "b.json")
    assert (place / "b.json").read_bytes() == (place / "a.json").read_bytes()
    assert done.solution == solution
    assert done.added == ()
    assert {path.name for path in place.iterdir()} == {"a.json", "b.json", "folder"}
