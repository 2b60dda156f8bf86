"""The example plugin as a template: where it is, and how a copy under other names is made."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flashinfer_bench.errors import CapabilityError, ConfigError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGE = Path(__file__).resolve().parents[1]
_IN_WHEEL = _PACKAGE / "_template"
_IN_REPOSITORY = _PACKAGE.parents[2] / "examples" / "fib-builder-example"

# What tools leave behind; importing an installed template compiles it, for one.
_LEFT_BY_TOOLS = re.compile(
    r"__pycache__|\.(pytest|mypy|ruff)_cache|\.(venv|nox|tox|hypothesis)|build|dist|traces"
    r"|.*\.(pyc|egg-info)"
)


@dataclass(frozen=True)
class Names:
    """What a new plugin is called.

    Parameters
    ----------
    plugin : str
        Name of the plugin and its record: ``my-lang``.
    language : str
        Language of the solutions that it builds.
    author : str
        ``Name`` or ``Name <mail>``; may be empty.
    """

    plugin: str
    language: str
    author: str = ""

    @property
    def distribution(self) -> str:
        """What is installed with pip: ``fib-builder-my-lang``."""
        return f"fib-builder-{self.plugin}"

    @property
    def package(self) -> str:
        """What is imported: ``fib_builder_my_lang``."""
        return self.distribution.replace("-", "_")

    @property
    def stem(self) -> str:
        """What the names of its classes begin with: ``MyLang``."""
        return "".join(part.capitalize() for part in self.plugin.split("-"))


def template_folder() -> Path:
    """Return the folder of the example plugin: in the installed package, or in the repository.

    Raises
    ------
    CapabilityError
        If it is in neither.
    """
    for folder in (_IN_WHEEL, _IN_REPOSITORY):
        if (folder / "pyproject.toml").is_file():
            return folder
    raise CapabilityError(
        f"the example plugin, from which new ones are made, is missing: {_IN_WHEEL}",
        hint="reinstall flashinfer-bench-core",
    )


def template_files(template: Path) -> Iterator[Path]:
    """Yield the files of the template, relative to it, without what tools have left there."""
    for path in sorted(template.rglob("*")):
        relative = path.relative_to(template)
        if path.is_file() and not any(map(_LEFT_BY_TOOLS.fullmatch, relative.parts)):
            yield relative


def copy_template(target: Path, names: Names) -> None:
    """Make the folder of a new plugin, whole or not at all.

    Parameters
    ----------
    target : Path
        Its folder, which must not exist.
    names : Names
        What it is called.

    Raises
    ------
    ConfigError
        If there is something at `target`.
    StorageError
        If it cannot be written.
    """
    template = template_folder()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            working = scratch / target.name  # unlike its parent, as open as the user's umask says
            for path in template_files(template):
                _copy(template / path, working / renamed(path.as_posix(), names), names)
            if target.exists() or target.is_symlink():  # rename would replace an empty folder
                raise ConfigError(f"{target} exists", hint="choose another name, or --output")
            working.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise StorageError(f"{target}: cannot be written: {error}") from error


def _copy(source: Path, target: Path, names: Names) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    text = source.read_text(encoding="utf-8")
    if source.name != "LICENSE":
        text = renamed(text, names)
    if source.name == "pyproject.toml":
        text = _with_author(text, names.author)
    target.write_text(text, encoding="utf-8")


def renamed(text: str, names: Names) -> str:
    """Return `text`, a path or the content of a file, with the names of the new plugin.

    Parts between ``<!-- example -->`` and ``<!-- /example -->``, which speak of the example as
    such, are left out.
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
    """Put the author's name into a pyproject.toml, or take the line out."""
    line = ""
    if author:
        name, _, mail = author.partition("<")
        fields = {"name": name.strip(), "email": mail.strip().removesuffix(">").strip()}
        # A JSON string is a TOML string, too.
        parts = [
            f"{key} = {json.dumps(value, ensure_ascii=False)}"
            for key, value in fields.items()
            if value
        ]
        line = f"authors = [{{ {', '.join(parts)} }}]\n"
    return re.sub(r"(?m)^authors = .*\n", lambda _: line, text)
