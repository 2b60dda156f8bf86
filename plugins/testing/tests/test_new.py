"""``fib plugins new``: what it makes is in order, what is refused, and what is in the wheel."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fib_plugin_new.command import template_files
from fib_tests import forked
from flashinfer_bench.plugins import KINDS

KIT = Path(__file__).resolve().parents[1]
EXAMPLE = KIT.parents[1] / "examples" / "fib-builder-example"
OTHERS = [kind for kind in KINDS if kind != "builder"]

TAKEN = """
from flashinfer_bench.plugins import BuilderSpec, hookimpl

@hookimpl
def fib_register_builders():
    yield BuilderSpec(name="my-record", handles=(("spoken", None),), factory="m:B")
"""


@pytest.fixture(autouse=True)
def _one_plugin(tmp_path, monkeypatch):
    """Have the command and a plugin ``fib_test_taken``, and no others besides core."""
    (tmp_path / "fib_test_taken.py").write_text(TAKEN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FIB_NO_PLUGINS", "1")
    monkeypatch.setenv("FIB_PLUGINS", "fib_plugin_new,fib_test_taken")
    yield
    sys.modules.pop("fib_test_taken", None)


@pytest.fixture
def new(fib, tmp_path):
    """Runs ``fib plugins new`` with an output folder of its own."""
    folder = tmp_path / "plugins"

    def run(*args):
        result = fib("plugins", "new", "--output", folder, *args)
        left = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
        return result, left, folder

    return run


def texts(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_names_in_the_copy(new):
    result, left, folder = new("my_lang", "--language", "c99")
    assert result.stdout == f"{folder / 'fib-builder-my-lang'}\n"
    assert left == ["fib-builder-my-lang"]
    assert "fib plugins doctor my-lang" in result.stderr
    files = texts(folder / "fib-builder-my-lang")
    for name, text in files.items():
        if name != "LICENSE":
            assert "example" not in f"{name} {text}".lower().replace("for example", ""), name
    project = files["pyproject.toml"]
    assert 'name = "fib-builder-my-lang"' in project
    assert 'my-lang = "fib_builder_my_lang"' in project
    assert 'packages = ["src/fib_builder_my_lang"]' in project
    record = files["src/fib_builder_my_lang/__init__.py"]
    assert 'name="my-lang"' in record
    assert 'handles=(("c99", None),)' in record
    assert 'factory="fib_builder_my_lang.builder:MyLangBuilder"' in record
    builder = files["src/fib_builder_my_lang/builder.py"]
    assert 'solution.spec.language == "c99"' in builder
    assert 'super().__init__("fib_my_lang", "my-lang")' in builder
    solutions = [json.loads(text) for name, text in files.items() if "/solutions/" in name]
    assert {solution["spec"]["language"] for solution in solutions} == {"c99"}
    assert {solution["author"] for solution in solutions} == {"my-lang"}
    assert files["README.md"].startswith("# fib-builder-my-lang\n")
    assert "the language `c99`" in files["README.md"]


def test_the_author(new):
    _, _, folder = new("zig", "--author", r'A "B" \g<0> C')
    line = r'authors = [{ name = "A \"B\" \\g", email = "0> C" }]'
    assert line in texts(folder / "fib-builder-zig")["pyproject.toml"].splitlines()


def test_the_longest_names_keep_to_the_style(new):
    if importlib.util.find_spec("ruff") is None:
        pytest.skip("ruff is not installed")
    _, left, folder = new("a" * 24, "--language", "b" * 24)
    assert left
    for command in (["check"], ["format", "--check"]):
        subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--no-cache", str(folder / left[0])],
            check=True,
        )


@pytest.mark.timeout(300)
def test_the_tests_of_small_plugins_pass(fib, tmp_path):
    for kind in OTHERS:
        result = fib("plugins", "new", "fresh", "--kind", kind, "--output", tmp_path / "made")
        folder = tmp_path / "made" / f"fib-{kind.replace('_', '-')}-fresh"
        assert (result.exit_code, result.stdout) == (0, f"{folder}\n"), result.output
    folders = sorted(map(str, tmp_path.glob("made/fib-*")))
    sources = [f"{folder}/src" for folder in folders]
    path = os.pathsep.join([*sources, os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    command += ["--import-mode=importlib", *folders]
    done = forked.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stdout
    found = re.search(r"^(\d+) passed(?! .*skipped)", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    assert int(found[1]) >= len(OTHERS) + 15  # and the suite of the adapter
    texts_of_adapter = texts(tmp_path / "made" / "fib-adapter-fresh")
    assert "docs/how-to/write-an-adapter.md" in texts_of_adapter["README.md"]
    assert 'test = ["flashinfer-bench-core[torch,testing]~=' in texts_of_adapter["pyproject.toml"]


_NAME = "use letters from a to z, digits and single hyphens, a letter first, and at most 24"
_LANGUAGE = "use letters from a to z, digits, '.'"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        *(([name], _NAME) for name in ("", "Zig", "9zig", "zig-", "a--b", "../zig", "zig\n")),
        (["a" * 25, "--kind", "timer"], _NAME),
        *((["zig", f"--language={word}"], _LANGUAGE) for word in ("", "C++", "-c", "x" * 25)),
        *(([name], "is taken by") for name in ("my_record", "fib-test-taken", "core")),
        (["zig", "--language", "spoken"], "the language 'spoken' is taken by fib_test_taken"),
        (["run", "--kind", "command"], "the name 'run' is taken by flashinfer-bench-core"),
        (["x", "--kind", "tummer"], "available kinds: builder"),
        (["zig", "--output", __file__], "is a file"),
    ],
)
def test_what_is_refused(new, args, words):
    result, left, _ = new(*args)
    assert (result.exit_code, left) == (2, [])
    assert words in result.stderr


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("no")])
def test_what_is_there_stays(new, make):
    _, _, folder = new("other")
    make(folder / "fib-builder-zig")
    result, left, _ = new("zig")
    assert result.exit_code == 2
    assert "fib-builder-zig exists" in result.stderr
    assert left == ["fib-builder-other", "fib-builder-zig"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Wheels and a source archive, built from a copy with caches lying about."""
    missing = [name for name in ("build", "hatchling") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    # A copy, to which caches can be added without touching the repository.
    root = tmp_path_factory.mktemp("repository")
    (root / "plugins").mkdir()
    subprocess.run(["cp", "-r", str(KIT), str(root / "plugins" / "testing")], check=True)
    (root / "examples").mkdir()
    subprocess.run(["cp", "-r", str(EXAMPLE), str(root / "examples")], check=True)
    example = root / "examples" / EXAMPLE.name
    for name in ("src/__pycache__/x.pyc", ".pytest_cache/README.md", "dataset/traces/x.jsonl"):
        (example / name).parent.mkdir(parents=True, exist_ok=True)
        (example / name).touch()
    out = root / "out"
    run = [sys.executable, "-m", "build", "--no-isolation", "--outdir"]
    subprocess.run([*run, str(out), "plugins/testing"], cwd=root, check=True)
    subprocess.run([*run, str(out / "direct"), "--wheel", "plugins/testing"], cwd=root, check=True)
    return out


@pytest.mark.slow
def test_both_wheels_have_the_whole_template_and_nothing_else(built):
    """Also the one that is built from the source archive."""
    expected = {path.as_posix() for path in template_files(EXAMPLE)}
    prefix = "fib_plugin_new/_template/"
    for path in (*built.glob("*.whl"), *built.glob("direct/*.whl")):
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
            content = wheel.read(f"{prefix}pyproject.toml")
        assert {n.removeprefix(prefix) for n in names if n.startswith(prefix)} == expected
        assert "fib_plugin_new/plugin_template/kinds.txt" in names
        assert content == (EXAMPLE / "pyproject.toml").read_bytes()
