"""What must differ for two builds to be two, and what must not."""

import os
import shutil

import pytest

from fib_native_toolkit import find_cc
from fib_native_toolkit.compiled import release_of


@pytest.fixture
def folder_of(c):
    """Return a function that builds, and returns the folder's name."""

    def build(solution=None):
        return c.CBuilder().compile(c.definition(), solution or c.solution()).folder.name

    return build


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


def test_native_code_counts_the_cpu(c, folder_of, monkeypatch, tmp_path):
    from flashinfer_bench.compile import machine

    native = c.solution(compile_options={"cflags": ["-march=native"]})
    here, portable = folder_of(native), folder_of()
    other = tmp_path / "cpuinfo"
    other.write_text("vendor_id : Other\nmodel name : Else\nflags : few\n\nvendor_id : Second\n")
    monkeypatch.setattr(machine, "_CPU_INFO", other)
    assert folder_of(native) != here
    assert folder_of() == portable


def test_an_environment_variable_of_the_compiler(folder_of, monkeypatch, tmp_path):
    plain = folder_of()
    monkeypatch.setenv("CPATH", str(tmp_path))
    with_path = folder_of()
    monkeypatch.setenv("CPATH", str(tmp_path / "other"))
    assert len({plain, with_path, folder_of()}) == 3
