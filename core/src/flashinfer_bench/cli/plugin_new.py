"""``fib plugins new``: start a plugin as a copy of the example, under other names."""

from __future__ import annotations

import keyword
import re
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from flashinfer_bench.cli.output import emit, printable, talk
from flashinfer_bench.cli.plugin_template import Names, copy_template
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.plugins import Settings, discover
from flashinfer_bench.plugins.settings import canonical

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashinfer_bench.plugins import Catalog

_PREFIX = "fib-builder-"
_PLUGIN = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_LANGUAGE = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")
# So that no line of the copy becomes longer than its linter allows.
_LONGEST = 24


def new_plugin(
    name: Annotated[
        str, typer.Argument(help="Name of the plugin: 'my-lang' makes fib-builder-my-lang.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", metavar="DIR", show_default=False, help="Where to make it. Default: here."
        ),
    ] = Path(),
    language: Annotated[
        Optional[str],
        typer.Option(
            "--language", metavar="LANG", show_default=False, help="Language. Default: the name."
        ),
    ] = None,
    author: Annotated[
        str,
        typer.Option("--author", metavar="AUTHOR", show_default=False, help="'Name <mail>'."),
    ] = "",
) -> None:
    """Start a builder plugin: a copy of the tested example under its own names.

    The copy builds, and its tests pass, before anything is changed. Prints its folder.
    """
    names = _checked(name, language, author)
    # What a plugin prints while it is looked at is talk, and must not end up in the data.
    with redirect_stdout(sys.stderr):
        _require_free(names, discover(replace(Settings.from_env(), strict=False)))
    if output.exists() and not output.is_dir():
        raise ConfigError(f"--output {str(output)!r} is a file; it must be a folder, or not exist")
    target = output / names.distribution
    copy_template(target, names)
    emit(printable(str(target)))
    talk(_next_steps(target, names))


def _checked(name: str, language: Optional[str], author: str) -> Names:
    plugin = name.replace("_", "-").removeprefix(_PREFIX)
    if not _PLUGIN.fullmatch(plugin) or len(plugin) > _LONGEST:
        raise ConfigError(
            f"{name!r} cannot be the name of a plugin: it begins with a letter, and has letters "
            f"from a to z, digits and single hyphens, at most {_LONGEST} in all",
            hint="write the name alone, such as 'my-lang'; --output says in which folder",
        )
    if keyword.iskeyword(plugin):
        raise ConfigError(f"{name!r} is a keyword of Python", hint="choose another name")
    spoken = plugin if language is None else language
    if not _LANGUAGE.fullmatch(spoken) or len(spoken) > _LONGEST:
        raise ConfigError(
            f"{language!r} cannot be the name of a language: it has letters from a to z, digits, "
            f"'.', '_' and '-', at most {_LONGEST}, and begins and ends with a letter or digit"
        )
    if not author.isprintable():
        raise ConfigError("--author holds a control character; write 'Name <mail>'")
    return Names(plugin, spoken, author.strip())


def _require_free(names: Names, catalog: Catalog) -> None:
    """Raise if something that is installed has one of the names: the two would be in conflict."""
    for kind, name, owner in _taken(catalog):
        wanted = names.language if kind == "language" else names.plugin
        if canonical(name).removeprefix(_PREFIX) == canonical(wanted):
            option = " --language" if kind == "language" else " name"
            raise ConfigError(
                f"the {kind} {name!r} is taken by {owner}",
                hint=f"choose another{option}; `fib plugins list` shows what there is",
            )


def _taken(catalog: Catalog) -> Iterator[tuple[str, str, str]]:
    yield "name", "example", "the plugin that new ones are made from"
    for status in catalog.plugins:
        owner = f"{status.distribution} {status.version}".strip() or f"the plugin {status.name}"
        yield "name", status.name, owner
        yield "name", status.distribution, owner
    claims = (claim for conflict in catalog.conflicts for claim in conflict.claims)
    for entry in (*catalog.builders, *(claim for claim in claims if claim.spec.kind == "builder")):
        yield "name", entry.name, entry.origin
        for spoken, _ in entry.spec.handles:
            yield "language", spoken, entry.origin


def _next_steps(target: Path, names: Names) -> str:
    return (
        f"{names.distribution} builds solutions in {names.language!r}. Next:\n"
        f"  cd {target}\n"
        "  pip install -e '.[test]' && pytest\n"
        f"  fib plugins doctor {names.plugin}\n"
        "It still compiles C, and its README says which part of which file to change."
    )
