"""What must differ for two builds to be two, and what must not."""

from __future__ import annotations

import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.compile.toolkit import content_digest, find_cc, host_fingerprint
from flashinfer_bench.compile.toolkit.release import release_of


@pytest.fixture
def folder_of(c):
    """Return a function that builds, and returns the folder's name."""

    def build(solution=None, definition=None, **key):
        artefact = c.CBuilder(**key).compile(definition or c.definition(), solution or c.solution())
        return artefact.folder.name

    return build


def test_sources(c, folder_of):
    other = c.solution("double run(double x) { return 3 * x; }\n")
    assert folder_of() != folder_of(other)


def test_a_file_that_is_only_included(c, folder_of):
    one = c.solution(files={"a.h": "1"})
    assert folder_of(one) != folder_of(c.solution(files={"a.h": "2"}))
    assert folder_of(one) != folder_of(c.solution(files={"b.h": "1"}))


@pytest.mark.parametrize(
    "options",
    [
        {"cflags": ["-DA"]},
        {"ldflags": ["-Wl,-O1"]},
        {"cflags": ["-DA", "-DB"]},
        {"cflags": ["-DB"]},
    ],
)
def test_flags(c, folder_of, options):
    assert folder_of() != folder_of(c.solution(compile_options=options))


def test_flags_count_in_their_order(c, folder_of):
    one = folder_of(c.solution(compile_options={"cflags": ["-DA", "-DB"]}))
    two = folder_of(c.solution(compile_options={"cflags": ["-DB", "-DA"]}))
    joined = folder_of(c.solution(compile_options={"cflags": ["-DA=1 -DB"]}))
    assert len({one, two, joined}) == 3


def test_language_and_binding(c):
    one, two = c.solution(), c.solution(binding="torch")
    assert content_digest(c.definition(), one) != content_digest(c.definition(), two)


def test_the_definition(c, folder_of):
    assert folder_of() != folder_of(definition=c.definition(name="other"))


def test_what_the_builder_adds(folder_of):
    architectures = {folder_of(arch=arch) for arch in ("8.0", "9.0a", "8.0 9.0a")}
    assert len(architectures) == 3
    assert folder_of(arch="9.0a") != folder_of(abi="9.0a")


def test_an_environment_variable_of_the_compiler(folder_of, monkeypatch, tmp_path):
    plain = folder_of()
    monkeypatch.setenv("CPATH", str(tmp_path))
    with_path = folder_of()
    monkeypatch.setenv("CPATH", str(tmp_path / "other"))
    assert len({plain, with_path, folder_of()}) == 3


def test_another_variable_does_not_count(folder_of, monkeypatch):
    plain = folder_of()
    monkeypatch.setenv("NOBODY_READS_THIS", "1")
    assert folder_of() == plain


def test_another_compiler_of_the_same_name(c, folder_of, script, monkeypatch):
    plain = folder_of()
    real = shutil.which("cc")
    text = f'[ "$1" = --version ] && echo "cc (Elsewhere) 99.1.0" && exit 0\nexec {real} "$@"'
    path = script("cc", text)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    assert find_cc().version.splitlines()[0] == "cc (Elsewhere) 99.1.0"
    other = folder_of()
    assert other != plain
    path.write_text(path.read_text().replace("99.1.0", "99.10.0"))
    assert find_cc().number == "99.10.0"
    assert folder_of() not in (plain, other)


def test_the_same_compiler_in_another_place_does_not_count(folder_of, tmp_path, monkeypatch):
    plain = folder_of()
    real = shutil.which("cc")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cc").symlink_to(real)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert find_cc().path == tmp_path / "bin" / "cc"
    assert folder_of() == plain


def test_a_compiler_that_is_a_script_counts_with_its_content(c, folder_of, script, monkeypatch):
    plain = folder_of()
    real = shutil.which("cc")
    path = script("mine", f'exec {real} -DFACTOR=2 "$@"')
    monkeypatch.setenv("CC", str(path))
    other = folder_of()
    assert other != plain
    script("mine", f'exec {real} -DFACTOR=3 "$@"')
    third = folder_of()
    assert third not in (plain, other)
    monkeypatch.setenv("CC", f"env {path}")
    fourth = folder_of()
    script("mine", f'exec {real} -DFACTOR=4 "$@"')
    assert len({other, third, fourth, folder_of()}) == 4


def test_the_builder_s_own_revision(c, folder_of, monkeypatch):
    plain = folder_of()
    monkeypatch.setattr(c.CBuilder, "revision", "2")
    assert folder_of() != plain


def test_another_release_of_the_plugin(c, folder_of, tmp_path, monkeypatch):
    plain = folder_of()
    found = []
    for version in ("1.0", "1.1"):
        site = tmp_path / version
        (site / "c_builder-1.0.dist-info").mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: c-builder\nVersion: {version}\n"
        (site / "c_builder-1.0.dist-info" / "METADATA").write_text(text)
        release_of.cache_clear()
        with monkeypatch.context() as patched:
            patched.syspath_prepend(str(site))
            found.append(folder_of())
    release_of.cache_clear()
    assert len({plain, *found}) == 3


def test_a_release_under_another_name(tmp_path, monkeypatch):
    info = tmp_path / "odd_name-3.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-name\nVersion: 3.1\n")
    (info / "entry_points.txt").write_text("[flashinfer_bench.plugins]\nx = some_builder.hooks\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert release_of("some_builder.deep.module") == "odd-name 3.1"
    assert release_of("no_such_package_at_all") == ""


def test_native_code_counts_the_cpu(c, folder_of, monkeypatch, tmp_path):
    from flashinfer_bench.compile.toolkit import fingerprint

    native = c.solution(compile_options={"cflags": ["-march=native"]})
    here, portable = folder_of(native), folder_of()
    other = tmp_path / "cpuinfo"
    other.write_text("vendor_id : Other\nmodel name : Else\nflags : few\n\nvendor_id : Second\n")
    monkeypatch.setattr(fingerprint, "_CPU_INFO", other)
    assert folder_of(native) != here
    assert folder_of() == portable


words = st.text(max_size=8)
keys = st.dictionaries(words, words, max_size=4)


@given(keys, keys)
def test_two_keys_are_one_only_if_they_are_equal(one, two):
    import json

    def digest(key):
        return content_digest(DEFINITION, SOLUTION, "fib_c", json.dumps(key, sort_keys=True))

    assert (digest(one) == digest(two)) == (one == two)


@given(st.lists(words, max_size=4), st.lists(words, max_size=4))
def test_two_lists_of_flags_are_one_only_if_they_are_equal(one, two):
    cc = find_cc()
    same = host_fingerprint(cc, one)["flags"] == host_fingerprint(cc, two)["flags"]
    assert same == (one == two)


@given(st.lists(words, max_size=4), st.lists(words, max_size=4))
def test_what_else_a_digest_is_made_of(one, two):
    first = content_digest(DEFINITION, SOLUTION, *one)
    assert (first == content_digest(DEFINITION, SOLUTION, *two)) == (one == two)


def _examples():
    from flashinfer_bench.data import Definition, Solution

    definition = Definition(
        name="scale",
        op_type="op",
        axes={"n": {"type": "var"}},
        inputs={"x": {"shape": ["n"], "dtype": "float32"}},
        outputs={"y": {"shape": ["n"], "dtype": "float32"}},
        reference="def run(x):\n    return x\n",
    )
    solution = Solution(
        name="s",
        definition="scale",
        author="a",
        spec={"language": "c", "target_hardware": ["cpu"], "entry_point": "k.c::run"},
        sources=[{"path": "k.c", "content": "int x;"}],
    )
    return definition, solution


DEFINITION, SOLUTION = _examples()
