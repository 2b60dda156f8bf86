"""``fib plugins new``: create a plugin from a template.

A builder plugin is a renamed copy of the example plugin; other kinds are created from the files in
``plugin_template``.
"""

from __future__ import annotations

import json
import keyword
import re
import shutil
import sys
import tempfile
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from flashinfer_bench import __version__
from flashinfer_bench.cli.options import option
from flashinfer_bench.cli.output import emit, printable, talk
from flashinfer_bench.cli.plugins import known_kind
from flashinfer_bench.data.storage import storage_error
from flashinfer_bench.errors import CapabilityError, ConfigError
from flashinfer_bench.plugins import KINDS, Settings, canonical, discover, hook_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.plugins import Catalog

_PACKAGE = Path(__file__).resolve().parent
_IN_WHEEL = _PACKAGE / "_template"
_IN_REPOSITORY = _PACKAGE / "../../../../examples/fib-builder-example"
_SMALL = _PACKAGE / "plugin_template"

# Files that tools leave behind, for example bytecode of an installed template.
_LEFT_BY_TOOLS = re.compile(
    r"__pycache__|\.(pytest|mypy|ruff)_cache|\.(venv|nox|tox|hypothesis)|build|dist|traces"
    r"|.*\.(pyc|egg-info)"
)

# Requirements of the tests, for kinds with a conformance suite.
_NEEDED = {"adapter": "flashinfer-bench-core[torch,testing]~=CORE_VERSION"}
_HOW_TO = {kind: f"write-an-{kind}" for kind in ("adapter", "evaluator", "executor")}

_PREFIX = "fib-builder-"
_PLUGIN = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_LANGUAGE = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")
# Limits line lengths in the copy to what its linter allows.
_LONGEST = 24


@dataclass(frozen=True)
class Names:
    """Names of a new plugin.

    Parameters
    ----------
    plugin : str
        Name of the plugin and its record: ``my-lang``.
    language : str
        Language that a builder builds.
    author : str
        ``Name`` or ``Name <mail>``; may be empty.
    kind : str
        Kind of its record.
    """

    plugin: str
    language: str
    author: str = ""
    kind: str = "builder"

    @property
    def distribution(self) -> str:
        """Name of the distribution: ``fib-builder-my-lang``."""
        return f"fib-{self.kind.replace('_', '-')}-{self.plugin}"

    @property
    def package(self) -> str:
        """Name of the package: ``fib_builder_my_lang``."""
        return self.distribution.replace("-", "_")

    @property
    def stem(self) -> str:
        """Prefix of its class names: ``MyLang``."""
        return "".join(part.capitalize() for part in self.plugin.split("-"))


def new_plugin(
    name: Annotated[
        str, typer.Argument(help="Name of the plugin: 'my-lang' for fib-builder-my-lang.")
    ],
    kind: Annotated[
        str,
        typer.Option("--kind", metavar="KIND", help=f"What it provides: {', '.join(KINDS)}."),
    ] = "builder",
    output: Annotated[
        Path, option("--output", metavar="DIR", help="Where to create it. Default: here.")
    ] = Path(),
    language: Annotated[
        Optional[str], option("--language", metavar="LANG", help="Language. Default: the name.")
    ] = None,
    author: Annotated[str, option("--author", metavar="AUTHOR", help="'Name <mail>'.")] = "",
) -> None:
    """Create a plugin of any kind, with a test that passes from the start.

    A builder is a renamed copy of the tested example, and works at once.
    Prints the folder of the plugin.
    """
    kind = known_kind(kind)
    names = _checked(name, language, author, kind)
    # Output of installed plugins must not be mixed with the data on stdout.
    with redirect_stdout(sys.stderr):
        _require_free(names, discover(replace(Settings.from_env(), strict=False)))
    if output.exists() and not output.is_dir():
        raise ConfigError(f"--output {str(output)!r} is a file; give a folder or a new path")
    target = output / names.distribution
    _write(target, _builder_files(names) if kind == "builder" else _small_files(names))
    emit(printable(str(target)))
    does, remark = "Next:", ""
    if kind == "builder":
        does = f"{names.distribution} builds solutions in {names.language!r}. Next:"
        remark = "\nIt compiles C until you change it; the README says what to change."
    test = "pip install -e '.[test]' && pytest"
    talk(f"{does}\n  cd {target}\n  {test}\n  fib plugins doctor {names.plugin}{remark}")


def _checked(name: str, language: Optional[str], author: str, kind: str) -> Names:
    prefix = Names("", "", kind=kind).distribution
    plugin = name.replace("_", "-").removeprefix(prefix).removeprefix(_PREFIX)
    if not _PLUGIN.fullmatch(plugin) or len(plugin) > _LONGEST:
        raise ConfigError(
            f"invalid plugin name {name!r}: use letters from a to z, digits and single hyphens, a "
            f"letter first, and at most {_LONGEST} characters",
            hint="give only the name, such as 'my-lang'; --output sets the folder",
        )
    if keyword.iskeyword(plugin):
        raise ConfigError(f"{name!r} is a Python keyword", hint="choose another name")
    spoken = plugin if language is None else language
    if not _LANGUAGE.fullmatch(spoken) or len(spoken) > _LONGEST:
        raise ConfigError(
            f"invalid language name {language!r}: use letters from a to z, digits, '.', '_' and "
            f"'-', a letter or digit first and last, and at most {_LONGEST} characters"
        )
    if not author.isprintable():
        raise ConfigError("--author contains a control character; write 'Name <mail>'")
    return Names(plugin, spoken, author.strip(), kind)


def _require_free(names: Names, catalog: Catalog) -> None:
    """Raise if an installed plugin, record or module has one of the names."""
    taken = [("name", entry.name, entry.origin) for entry in catalog.entries(names.kind)]
    if names.kind == "builder":
        taken.append(("name", "example", "the template of new plugins"))
        for status in catalog.plugins:
            taken += [("name", each, status.origin) for each in (status.name, status.distribution)]
        for entry in catalog.builders:
            taken += [("language", spoken, entry.origin) for spoken, _ in entry.spec.handles]
    for what, name, origin in taken:
        wanted = names.language if what == "language" else names.plugin
        if canonical(name).removeprefix(_PREFIX) == canonical(wanted):
            raise ConfigError(
                f"the {what} {name!r} is taken by {origin}",
                hint=f"choose another {what}; `fib plugins list` shows those in use",
            )


def _write(target: Path, files: dict[str, str]) -> None:
    """Create the folder of a new plugin completely or not at all."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            working = scratch / target.name  # unlike its parent, as open as the user's umask says
            for path, text in files.items():
                file = working / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            if target.exists() or target.is_symlink():  # rename would replace an empty folder
                raise ConfigError(f"{target} exists", hint="choose another name, or --output")
            working.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise storage_error(target, error) from error


def _small_files(names: Names) -> dict[str, str]:
    """Return the files of a plugin of any kind but a builder, by path."""
    kinds = (_SMALL / "kinds.txt").read_text(encoding="utf-8").partition(f"==== {names.kind}: ")
    fields, _, code = kinds[2].partition("====")[0].partition("\n")
    # In this order, because some replacements contain other placeholders.
    words = {
        "BODY": code,
        "NEEDED": _NEEDED.get(names.kind, "pytest>=8"),
        "ARTICLE": "An" if names.kind[0] in "aeio" else "A",
        "HOW_TO": _HOW_TO.get(names.kind, "write-a-plugin"),
        "FIELDS": fields.replace(", ", ",\n        "),
        "DISTRIBUTION": names.distribution,
        "CORE_VERSION": ".".join([*__version__.split(".")[:2], "0"]),
        "CODE": f"{names.package}.code",
        "PACKAGE": names.package,
        "RECORD": KINDS[names.kind].__name__,
        "HOOK": hook_of(names.kind),
        "KIND": names.kind,
        "SPOKEN": names.kind.replace("_", " "),
        "STEM": names.stem,
        "NAME": names.plugin,
    }
    files = {}
    for source in (*_SMALL.rglob("*.in"), *_SMALL.rglob(f"*.{names.kind}")):
        path, text = source.relative_to(_SMALL).as_posix(), source.read_text(encoding="utf-8")
        for word, value in words.items():
            text = text.replace(word, value)
        files[path.rpartition(".")[0].replace("PACKAGE", names.package)] = text
    return files


def template_folder() -> Path:
    """Return the folder of the example plugin: in the installed package, or in the repository.

    Raises
    ------
    CapabilityError
        If it is missing.
    """
    for folder in (_IN_WHEEL, _IN_REPOSITORY):
        if (folder / "pyproject.toml").is_file():
            return folder
    raise CapabilityError(
        f"the template of new plugins is missing: {_IN_WHEEL}",
        hint="reinstall fib-testing",
    )


def template_files(template: Path) -> Iterator[Path]:
    """Yield the relative paths of the example's files, without those that tools leave behind."""
    for path in sorted(template.rglob("*")):
        relative = path.relative_to(template)
        if path.is_file() and not any(map(_LEFT_BY_TOOLS.fullmatch, relative.parts)):
            yield relative


def _builder_files(names: Names) -> dict[str, str]:
    """Return the files of a builder plugin, by path."""
    template, files = template_folder(), {}
    for path in template_files(template):
        text = (template / path).read_text(encoding="utf-8")
        if path.name != "LICENSE":
            text = renamed(text, names)
        if path.name == "pyproject.toml":
            text = _with_author(text, names.author)
        files[renamed(path.as_posix(), names)] = text
    return files


def renamed(text: str, names: Names) -> str:
    """Return `text`, a path or the content of a file, with the names of the new plugin.

    Parts between ``<!-- example -->`` and ``<!-- /example -->``, which are about the example, are
    removed.
    """
    text = re.sub(r"<!-- example -->.*?<!-- /example -->\n*", "", text, flags=re.DOTALL)
    for pattern, replacement in (
        (r"fib-builder-example", names.distribution),
        (r"fib_builder_example", names.package),
        (r"Example(?=Builder|Plugin)", names.stem),
        (r"\bfib_example", names.package.replace("fib_builder_", "fib_")),
        (r"(?<=[\"'`/ ])example(?=[\"'`/])", names.plugin),
        (r"(?m)^example(?= = )|(?<=doctor )example\b", names.plugin),
        (r"(?<=[\"'`])c(?=[\"'`])", names.language),
    ):
        text = re.sub(pattern, replacement, text)
    return text


def _with_author(text: str, author: str) -> str:
    """Set the author in a pyproject.toml, or remove the line."""
    line = ""
    if author:
        name, _, mail = author.partition("<")
        fields = {"name": name.strip(), "email": mail.strip().removesuffix(">").strip()}
        quoted = json.JSONEncoder(ensure_ascii=False).encode  # JSON strings are TOML strings
        parts = [f"{key} = {quoted(value)}" for key, value in fields.items() if value]
        line = f"authors = [{{ {', '.join(parts)} }}]\n"
    return re.sub(r"(?m)^authors = .*\n", lambda _: line, text)
