"""``fib plugins new``: what the copy holds, what is refused, and where it is taken from."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from flashinfer_bench.cli import plugin_template
from flashinfer_bench.cli.plugin_template import Names, renamed, template_files, template_folder

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
    def test_it_prints_the_folder_and_says_what_to_do_next(self, new):
        result, left, folder = new("my-lang")
        assert result.exit_code == 0, result.stderr
        assert result.stdout == f"{folder / 'fib-builder-my-lang'}\n"
        assert left == ["fib-builder-my-lang"]
        assert "pytest" in result.stderr
        assert "fib plugins doctor my-lang" in result.stderr

    def test_every_file_of_the_example_is_there_and_none_else(self, new):
        _, _, folder = new("my-lang")
        names = Names("my-lang", "my-lang")
        expected = {renamed(path.as_posix(), names) for path in template_files(EXAMPLE)}
        assert set(texts(folder / "fib-builder-my-lang")) == expected
        assert {".gitignore", ".github/workflows/ci.yml", "LICENSE"} <= expected
        assert "src/fib_builder_my_lang/builder.py" in expected

    def test_nothing_speaks_of_the_example_any_more(self, new):
        _, _, folder = new("my-lang", "--author", "Ada")
        for name, text in texts(folder / "fib-builder-my-lang").items():
            if name != "LICENSE":
                assert "example" not in f"{name} {text}".lower(), name

    def test_names_in_the_copy(self, new):
        _, _, folder = new("my_lang", "--language", "c99")
        files = texts(folder / "fib-builder-my-lang")
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

    def test_its_sources_are_python(self, new):
        _, _, folder = new("class-9")
        for name, text in texts(folder / "fib-builder-class-9").items():
            if name.endswith(".py"):
                compile(text, name, "exec")

    def test_the_language_is_the_name_unless_it_is_given(self, new):
        _, _, folder = new("zig")
        record = texts(folder / "fib-builder-zig")["src/fib_builder_zig/__init__.py"]
        assert 'handles=(("zig", None),)' in record

    def test_the_prefix_may_be_given_too(self, new):
        assert new("fib-builder-zig")[1] == ["fib-builder-zig"]

    @pytest.mark.parametrize(
        ("author", "line"),
        [
            ("Ada Lovelace", 'authors = [{ name = "Ada Lovelace" }]'),
            (
                "Ada <ada@analytical.engine>",
                'authors = [{ name = "Ada", email = "ada@analytical.engine" }]',
            ),
            (r'A "B" \g<0> C', r'authors = [{ name = "A \"B\" \\g", email = "0> C" }]'),
            ("Ада", 'authors = [{ name = "Ада" }]'),
        ],
    )
    def test_the_author(self, new, author, line):
        _, _, folder = new("zig", "--author", author)
        assert line in texts(folder / "fib-builder-zig")["pyproject.toml"].splitlines()

    def test_without_an_author_none_is_named(self, new):
        _, _, folder = new("zig")
        assert "authors" not in texts(folder / "fib-builder-zig")["pyproject.toml"]

    @pytest.mark.parametrize("length", [1, 12, 24])
    def test_names_of_all_lengths_keep_to_the_style(self, new, length):
        if importlib.util.find_spec("ruff") is None:
            pytest.skip("ruff is not installed")
        _, left, folder = new("a" * length, "--language", "b" * length)
        assert left
        for command in (["check"], ["format", "--check"]):
            subprocess.run(
                [sys.executable, "-m", "ruff", *command, "--no-cache", str(folder / left[0])],
                check=True,
            )

    def test_without_output_it_is_made_here(self, fib, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        result = fib("plugins", "new", "zig")
        assert result.stdout == "fib-builder-zig\n"
        assert (tmp_path / "fib-builder-zig" / "pyproject.toml").is_file()

    def test_folders_are_as_open_as_the_umask_says(self, new):
        old = os.umask(0o027)
        try:
            _, left, folder = new("zig")
        finally:
            os.umask(old)
        assert (folder / left[0]).stat().st_mode & 0o777 == 0o750


class TestRefused:
    @pytest.mark.parametrize(
        "name",
        [
            *("", " ", "Zig", "9zig", "-zig", "zig-", "a--b", "a b", "a/b", "../zig", "/zig"),
            *("a\\b", "zig.c", "zïg", "ｚig", "zig\n", "z\0g", "a" * 25, "fib-builder-", "."),
        ],
    )
    def test_what_is_no_name(self, new, name):
        result, left, _ = new("--", name) if name.startswith("-") else new(name)
        assert (result.exit_code, left) == (2, [])
        assert "letters from a to z, digits and single hyphens, at most 24" in result.stderr

    @pytest.mark.parametrize("name", ["class", "lambda", "fib-builder-import"])
    def test_keywords(self, new, name):
        result, left, _ = new(name)
        assert (result.exit_code, left) == (2, [])
        assert "is a keyword of Python" in result.stderr

    @pytest.mark.parametrize("language", ["", "C++", "a b", "-c", "c-", "a/b", "ç", "x" * 25])
    def test_what_is_no_language(self, new, language):
        result, left, _ = new("zig", f"--language={language}")
        assert (result.exit_code, left) == (2, [])
        assert "cannot be the name of a language: it has letters from a to z" in result.stderr

    @pytest.mark.parametrize("name", ["my-record", "my_record", "fib-test-taken", "core"])
    def test_names_that_are_taken(self, new, name):
        result, left, _ = new(name)
        assert (result.exit_code, left) == (2, [])
        assert "is taken by" in result.stderr
        assert "fib plugins list" in result.stderr

    @pytest.mark.parametrize("args", [["spoken"], ["zig", "--language", "spoken"]])
    def test_a_language_that_is_taken(self, new, args):
        result, left, _ = new(*args)
        assert (result.exit_code, left) == (2, [])
        assert "the language 'spoken' is taken by fib_test_taken" in result.stderr

    def test_the_example_s_own_name(self, new):
        assert "the plugin that new ones are made from" in new("example")[0].stderr

    def test_a_broken_plugin_is_no_reason_to_refuse(self, new, monkeypatch):
        monkeypatch.setenv("FIB_PLUGINS", "fib_test_not_there")
        monkeypatch.setenv("FIB_STRICT_PLUGINS", "1")
        assert new("zig")[0].exit_code == 0

    @pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: path.symlink_to("no")])
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

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_folder_that_cannot_be_written(self, fib, tmp_path):
        (tmp_path / "closed").mkdir(mode=0o500)
        result = fib("plugins", "new", "zig", "--output", tmp_path / "closed")
        assert result.exit_code == 4

    def test_a_place_below_a_file_cannot_be_written(self, fib, tmp_path):
        (tmp_path / "file").touch()
        result = fib("plugins", "new", "zig", "--output", tmp_path / "file" / "folder")
        assert result.exit_code == 4
        assert "cannot be written" in result.stderr

    def test_an_author_with_a_line_break(self, new):
        result, left, _ = new("zig", "--author", "Ada\nname = 1")
        assert (result.exit_code, left) == (2, [])


class TestTemplate:
    def test_what_the_wheel_leaves_out_is_what_a_copy_leaves_out(self):
        pattern = r"_LEFT_BY_TOOLS = re\.compile\((.*?)\n\)"
        files = (CORE / "hatch_build.py", Path(plugin_template.__file__))
        first, second = (re.search(pattern, path.read_text(), re.DOTALL)[1] for path in files)
        assert first == second

    def test_what_tools_leave_is_no_part_of_it(self, tmp_path_factory):
        tmp_path = tmp_path_factory.mktemp("template")
        for name in ("a.py", "src/b.py", ".gitignore", ".github/workflows/c.yml", "builder.py"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        kept = sorted(path.as_posix() for path in template_files(tmp_path))
        for name in (
            "src/__pycache__/b.cpython-311.pyc",
            ".pytest_cache/x",
            ".mypy_cache/3.11/x",
            ".ruff_cache/x",
            ".venv/bin/python",
            ".hypothesis/constants/x",
            "build/lib/x.py",
            "dist/x.whl",
            "fib.egg-info/PKG-INFO",
            "dataset/traces/op/x.jsonl",
            "stale.pyc",
        ):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        assert sorted(path.as_posix() for path in template_files(tmp_path)) == kept
        assert len(kept) == 5

    def test_the_installed_one_comes_before_the_repository_s(self, tmp_path, monkeypatch):
        assert template_folder() in (EXAMPLE, plugin_template._IN_WHEEL)
        (tmp_path / "pyproject.toml").touch()
        monkeypatch.setattr(plugin_template, "_IN_WHEEL", tmp_path)
        assert template_folder() == tmp_path

    def test_without_any_the_user_is_told(self, fib, tmp_path, monkeypatch):
        monkeypatch.setattr(plugin_template, "_IN_WHEEL", tmp_path / "a")
        monkeypatch.setattr(plugin_template, "_IN_REPOSITORY", tmp_path / "b")
        result = fib("plugins", "new", "zig", "--output", tmp_path / "out")
        assert result.exit_code == 4
        assert "reinstall flashinfer-bench-core" in result.stderr

    def test_words_that_only_look_like_names_stay(self):
        names = Names("zig", "zag")
        for text in ("for example, c", "counterexample", "'abc'", "example.org", "cc", "`cc`"):
            assert renamed(text, names) == text

    def test_help_tells_of_it(self, fib):
        assert re.search(r"^\s+new\s", fib("plugins", "--help").stdout, re.MULTILINE)
        assert "--language" in fib("plugins", "new", "--help").stdout


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
            assert content == (EXAMPLE / "pyproject.toml").read_bytes()

    def test_an_editable_wheel_has_none_of_it(self, built):
        code = "import sys; from hatchling.build import build_editable as b; b(sys.argv[1])"
        folder = built / "editable"
        folder.mkdir()
        command = [sys.executable, "-c", code, str(folder)]
        subprocess.run(command, cwd=built.parent / "core", check=True)
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            assert [name for name in wheel.namelist() if "_template" in name] == []

    def test_the_source_archive_can_build_it(self, built):
        (path,) = built.glob("*.tar.gz")
        with tarfile.open(path) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        assert {"hatch_build.py", "_template/pyproject.toml", "_template/.gitignore"} <= names

    def test_an_installed_core_makes_plugins_from_it(self, built, tmp_path):
        (wheel,) = built.glob("*.whl")
        site = tmp_path / "site"
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
        if subprocess.run([*pip, "--target", site, wheel], check=False).returncode:
            pytest.skip("pip is not installed")
        environment = {**os.environ, "PYTHONPATH": str(site), "FIB_NO_PLUGINS": "1"}
        code = "import flashinfer_bench.cli.main as m; print(m.__file__); m.main()"
        done = subprocess.run(
            [sys.executable, "-c", code, "plugins", "new", "zig"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.splitlines()[0].startswith(str(site))
        made = texts(tmp_path / "fib-builder-zig")
        names = Names("zig", "zig")
        assert set(made) == {renamed(path.as_posix(), names) for path in template_files(EXAMPLE)}
