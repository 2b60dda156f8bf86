"""``fib plugins new``: what the copy holds, what is refused, and where it is taken from."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from flashinfer_bench.cli.plugin_new import template_files

CORE = Path(__file__).resolve().parents[2]
EXAMPLE = CORE.parent / "examples" / "fib-builder-example"

TAKEN = """
from flashinfer_bench.plugins import BuilderSpec, hookimpl

@hookimpl
def fib_register_builders():
    yield BuilderSpec(name="my-record", handles=(("spoken", None),), factory="m:B")
"""


@pytest.fixture(autouse=True)
def _one_plugin(tmp_path, monkeypatch):
    """Have a single plugin besides core, ``fib_test_taken``."""
    (tmp_path / "fib_test_taken.py").write_text(TAKEN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FIB_NO_PLUGINS", "1")
    monkeypatch.setenv("FIB_PLUGINS", "fib_test_taken")
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
        if path.is_file()
    }


class TestCopy:
    def test_names_in_the_copy(self, new):
        result, left, folder = new("my_lang", "--language", "c99")
        assert result.stdout == f"{folder / 'fib-builder-my-lang'}\n"
        assert left == ["fib-builder-my-lang"]
        assert "fib plugins doctor my-lang" in result.stderr
        files = texts(folder / "fib-builder-my-lang")
        for name, text in files.items():
            if name != "LICENSE":
                assert "example" not in f"{name} {text}".lower(), name
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

    @pytest.mark.parametrize(
        ("author", "line"),
        [
            (
                "Ada <ada@analytical.engine>",
                'authors = [{ name = "Ada", email = "ada@analytical.engine" }]',
            ),
            (r'A "B" \g<0> C', r'authors = [{ name = "A \"B\" \\g", email = "0> C" }]'),
        ],
    )
    def test_the_author(self, new, author, line):
        _, _, folder = new("zig", "--author", author)
        assert line in texts(folder / "fib-builder-zig")["pyproject.toml"].splitlines()

    def test_the_longest_names_keep_to_the_style(self, new):
        if importlib.util.find_spec("ruff") is None:
            pytest.skip("ruff is not installed")
        _, left, folder = new("a" * 24, "--language", "b" * 24)
        assert left
        for command in (["check"], ["format", "--check"]):
            subprocess.run(
                [sys.executable, "-m", "ruff", *command, "--no-cache", str(folder / left[0])],
                check=True,
            )


class TestRefused:
    @pytest.mark.parametrize(
        "name",
        [
            *("", "Zig", "9zig", "-zig", "zig-", "a--b", "../zig", "zïg", "zig\n", "a" * 25),
        ],
    )
    def test_what_is_no_name(self, new, name):
        result, left, _ = new("--", name) if name.startswith("-") else new(name)
        assert (result.exit_code, left) == (2, [])
        assert "letters from a to z, digits and single hyphens, at most 24" in result.stderr

    @pytest.mark.parametrize("language", ["", "C++", "-c", "a/b", "x" * 25])
    def test_what_is_no_language(self, new, language):
        result, left, _ = new("zig", f"--language={language}")
        assert (result.exit_code, left) == (2, [])
        assert "cannot be the name of a language: it has letters from a to z" in result.stderr

    @pytest.mark.parametrize("name", ["my_record", "fib-test-taken", "core"])
    def test_names_that_are_taken(self, new, name):
        result, left, _ = new(name)
        assert (result.exit_code, left) == (2, [])
        assert "is taken by" in result.stderr
        assert "fib plugins list" in result.stderr

    def test_a_language_that_is_taken(self, new):
        result, left, _ = new("zig", "--language", "spoken")
        assert (result.exit_code, left) == (2, [])
        assert "the language 'spoken' is taken by fib_test_taken" in result.stderr

    @pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("no")])
    def test_what_is_there_stays(self, new, make):
        _, _, folder = new("other")
        make(folder / "fib-builder-zig")
        result, left, _ = new("zig")
        assert result.exit_code == 2
        assert "fib-builder-zig exists" in result.stderr
        assert left == ["fib-builder-other", "fib-builder-zig"]

    def test_an_output_that_is_a_file(self, fib, tmp_path):
        (tmp_path / "file").touch()
        result = fib("plugins", "new", "zig", "--output", tmp_path / "file")
        assert result.exit_code == 2
        assert "is a file" in result.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Wheels and a source archive of core, built from a copy with caches lying about."""
    missing = [name for name in ("build", "hatchling") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    # A copy, to which caches can be added without touching the repository.
    root = tmp_path_factory.mktemp("repository")
    copy = ["cp", "-r", str(CORE), str(root / "core")]
    subprocess.run(copy, check=True)
    (root / "examples").mkdir()
    subprocess.run(["cp", "-r", str(EXAMPLE), str(root / "examples")], check=True)
    example = root / "examples" / EXAMPLE.name
    for name in ("src/__pycache__/x.pyc", ".pytest_cache/README.md", "dataset/traces/x.jsonl"):
        (example / name).parent.mkdir(parents=True, exist_ok=True)
        (example / name).touch()
    out = root / "out"
    run = [sys.executable, "-m", "build", "--no-isolation", "--outdir"]
    subprocess.run([*run, str(out), "core"], cwd=root, check=True)
    subprocess.run([*run, str(out / "direct"), "--wheel", "core"], cwd=root, check=True)
    return out


@pytest.mark.slow
class TestPackaging:
    """The template is in the wheel, also in one that is built from the source archive."""

    def test_both_wheels_have_all_of_it_and_nothing_else(self, built):
        expected = {path.as_posix() for path in template_files(EXAMPLE)}
        for path in (*built.glob("*.whl"), *built.glob("direct/*.whl")):
            with zipfile.ZipFile(path) as wheel:
                names = wheel.namelist()
                content = wheel.read("flashinfer_bench/_template/pyproject.toml")
            prefix = "flashinfer_bench/_template/"
            packed = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
            assert packed == expected
            assert "flashinfer_bench/cli/plugin_template/kinds.txt" in names
            assert content == (EXAMPLE / "pyproject.toml").read_bytes()
