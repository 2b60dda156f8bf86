"""A command group that knows its commands by name and summary, and imports one only to run it.

``fib --help`` has to stay quick, so listing and completion work on stubs. The code of a command,
and the plugins, are looked at only once a command has been named.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import typer
from typer.core import TyperCommand, TyperGroup

from flashinfer_bench._lazy import import_string

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_COMPLETION = ("install_completion", "show_completion")


class LazyCommand(NamedTuple):
    """Where the code of a command is, and what is said of it until it is loaded."""

    target: str
    summary: str


def as_command(obj: Any, name: str, summary: str = "") -> Any:
    """Turn what a command table names into a command that can be run.

    Parameters
    ----------
    obj : typer.Typer or callable
        An application (with one command or several), or a plain function with annotations.
    name : str
        Name of the command.
    summary : str
        Help text of an application that has none itself.

    Returns
    -------
    command
        As `typer.main.get_command` returns it.
    """
    app = obj
    if not isinstance(obj, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(name)(obj)
    command = typer.main.get_command(app)
    # The root offers these, once.
    command.params = [param for param in command.params if param.name not in _COMPLETION]
    command.name = name
    command.help = command.help or summary
    return command


def near_matches(name: str, known: list[str]) -> str:
    """Return ``" Did you mean 'a' or 'b'?"`` for what is close to `name`, or ``""``."""
    close = get_close_matches(name, known, n=3)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


class LazyGroup(TyperGroup):
    """A group whose commands come from `table`, then from plugins."""

    table: Mapping[str, LazyCommand] = {}

    def plugin_commands(self) -> Mapping[str, Callable[[], Any]]:
        """Return the loaders of commands that plugins add; called only for an unknown name."""
        return {}

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the table; plugins are not asked."""
        return [*self.table, *(name for name in self.commands if name not in self.table)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a loaded command, else a stub that has its summary, else None."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        entry = self.table.get(cmd_name)
        return entry and TyperCommand(cmd_name, help=entry.summary, rich_markup_mode=None)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Optional[str], Any, list[str]]:
        """Import the command that `args` names, and only that one."""
        name = args[0]
        if name not in self.commands and not name.startswith("-"):
            self._load(ctx, name)
        return super().resolve_command(ctx, args)

    def _load(self, ctx: Any, name: str) -> None:
        entry = self.table.get(name)
        if entry is not None:
            self.add_command(as_command(import_string(entry.target), name, entry.summary), name)
            return
        # Completion asks with half a word: that is no reason to discover plugins.
        if ctx.resilient_parsing:
            return
        plugins = self.plugin_commands()
        if name in plugins:
            self.add_command(as_command(plugins[name](), name), name)
            return
        known = [*self.list_commands(ctx), *plugins]
        ctx.fail(f"there is no command {name!r}.{near_matches(name, known)}")
