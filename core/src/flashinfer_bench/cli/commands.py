"""The commands of ``fib``, including those of plugins, from a cache or by discovery.

Listing commands must not import plugins, so the result of discovery is cached in a small file, with
a key of everything that it depends on. The file can be deleted at any time: plugins are then
discovered again. Groups list commands by name and summary; code is imported when a command runs.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import zlib
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import typer
from typer.core import TyperCommand, TyperGroup

from flashinfer_bench import env
from flashinfer_bench._lazy import import_string
from flashinfer_bench._providers import install_hint, provided_commands
from flashinfer_bench._version import __version__
from flashinfer_bench.errors import CapabilityError, ConfigError, FibError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from flashinfer_bench.plugins import Catalog

logger = logging.getLogger(__name__)

_FORMAT = 2
_REPORTS = "flashinfer_bench.cli.report:plugin_reports"
_METADATA = (".dist-info", ".egg-info", ".egg-link")


class Listed(NamedTuple):
    """A command as listings show it; the name of a subcommand is ``"report scores"``.

    A command that is not installed has no factory; its origin is the distribution to install.
    """

    name: str
    factory: str
    summary: str
    origin: str

    @property
    def group(self) -> str:
        """The group that it is a subcommand of, or an empty string."""
        return self.name.rpartition(" ")[0]

    @property
    def word(self) -> str:
        """The last word of the name, without that of the group."""
        return self.name.rpartition(" ")[2]

    def load(self) -> Any:
        """Import and return the command; raise `CapabilityError` if it is not installed."""
        if not self.factory:
            off = " or not loaded: FIB_NO_PLUGINS is set" if env.no_plugins() else ""
            raise CapabilityError(
                f"'fib {self.name}' is provided by {self.origin}, which is not installed{off}",
                hint=install_hint(self.origin),
            )
        try:
            return import_string(self.factory)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException:  # noqa: BLE001 - a plugin's code; the catalog's error names it
            from flashinfer_bench.plugins import default_catalog

            return default_catalog().find("command", self.name).load()


def cached_commands() -> Optional[tuple[Listed, ...]]:
    """Return all commands in the order of listings, or None if there is no valid cache."""
    try:
        found = json.loads(_cache_file().read_text(encoding="utf-8"))
        if found["key"] != _key() or any(_stamp(path) != stamp for path, stamp in found["files"]):
            return None
        return tuple(Listed(*map(str, row)) for row in found["commands"])
    except (OSError, ValueError, TypeError, LookupError, RuntimeError, RecursionError):
        return None


def discovered_commands() -> tuple[Listed, ...]:
    """Load the plugins, cache their commands, and return all commands in the order of listings."""
    from flashinfer_bench.data.storage import replace_file
    from flashinfer_bench.plugins import Settings, discover, reset_default_catalog

    key = _key()
    try:
        settings = Settings.from_env()
    except ConfigError:  # reported when a command runs; core's commands are listed
        settings = Settings(no_plugins=True)
    with redirect_stdout(sys.stderr):  # stdout is for data, not for what plugins print
        catalog = discover(replace(settings, strict=False))
    if not settings.strict:
        reset_default_catalog(catalog, replace=False)
    found = {
        one.name: Listed(one.name, one.spec.factory, one.spec.summary, one.origin)
        for one in catalog.commands
    }
    for one in catalog.reports:
        name, factory = f"report {one.name}", f"{_REPORTS}.{one.name}"
        found.setdefault(name, Listed(name, factory, one.spec.summary, one.origin))
    commands = tuple(found.values())
    # A broken plugin may be repaired by something that the key does not cover.
    if all(status.state != "broken" for status in catalog.plugins):
        files = [[path, _stamp(path)] for path in sorted(_files_of(catalog))]
        text = json.dumps({"key": key, "files": files, "commands": commands})
        with suppress(StorageError, RuntimeError):
            replace_file(_cache_file(), text.encode())
    return commands


def _cache_file() -> Path:
    # One file for each environment; a shared one would be rewritten at each change between them.
    return env.cache_path() / f"commands-{zlib.crc32(sys.prefix.encode()):08x}.json"


def _key() -> list[Any]:
    """Return what the set of plugins depends on, as JSON values."""
    variables = [os.environ.get(name, "") for name in env.PLUGIN_VARIABLES]
    paths = [os.path.abspath(path) for path in sys.path]  # noqa: PTH100 - much faster
    return [_FORMAT, __version__, variables, [[path, _installed_in(path)] for path in paths]]


def _installed_in(folder: str) -> Any:
    """Return the distributions in a folder of ``sys.path``, with their time stamps.

    The names of their metadata folders contain the versions.
    """
    try:
        with os.scandir(folder) as entries:
            names = [each.path for each in entries if each.name.endswith(_METADATA)]
    except NotADirectoryError:  # a zip file
        return _stamp(folder)
    except OSError:
        return None
    return [[path, _stamp(path), _stamp(f"{path}/entry_points.txt")] for path in sorted(names)]


def _stamp(path: str) -> Optional[list[int]]:
    try:
        status = os.stat(path)  # noqa: PTH116 - much faster
    except OSError:
        return None
    return [status.st_mtime_ns, status.st_size]


def _files_of(catalog: Catalog) -> Iterator[str]:
    """Yield the files of the modules that plugins are loaded from."""
    for status in catalog.plugins:
        module = status.target.partition(":")[0]
        package = module if status.name == "core" else module.partition(".")[0]
        for name in list(sys.modules):
            if name == package or name.startswith(f"{package}."):
                file = getattr(sys.modules[name], "__file__", None)
                if file:
                    yield str(file)


# ---------------------------------------------------------------------------- groups of commands

_COMPLETION = ("install_completion", "show_completion")


def as_command(obj: Any, name: str, summary: str = "") -> Any:
    """Turn the object that a factory names into a runnable command.

    Parameters
    ----------
    obj : typer.Typer or callable
        An application (with one command or several), or a plain function with annotations.
    name : str
        Name of the command.
    summary : str
        Help text, if the application has none.

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
    # Only the root command has the options for shell completion.
    command.params = [param for param in command.params if param.name not in _COMPLETION]
    command.name = name
    command.help = command.help or summary
    return command


def near_matches(name: str, known: list[str]) -> str:
    """Return ``" Did you mean 'a' or 'b'?"`` for names close to `name`, or ``""``."""
    close = get_close_matches(name, known, n=3)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


class LazyCommand(TyperCommand):
    """A stub with name and summary, which loads the real command when it is used."""

    def __init__(self, listed: Listed, subcommands: Sequence[Listed] = ()) -> None:
        super().__init__(
            listed.word, help=listed.summary, hidden=not listed.factory, rich_markup_mode=None
        )
        self._listed = listed
        self._subcommands = subcommands

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """Import the command and return its context, not that of the stub."""
        listed = self._listed
        with redirect_stdout(sys.stderr):  # what plugins print is neither data nor a completion
            command = as_command(listed.load(), listed.word, listed.summary)
            for each in self._subcommands:
                if each.factory or isinstance(command, TyperGroup):
                    _add(command, each)
        if extra.get("resilient_parsing"):
            from flashinfer_bench.cli.completion import add_completion

            add_completion(command, listed.name)
        return command.make_context(info_name, args, parent=parent, **extra)


def _add(group: Any, listed: Listed) -> None:
    """Add a plugin's subcommand to a loaded group, whose own commands are never replaced."""
    if hasattr(group, "extend"):
        try:
            group.extend(as_command(listed.load(), listed.word))
            return
        except FibError as error:
            reason = error.message
    elif not isinstance(group, TyperGroup):
        reason = f"{group.name!r} has no subcommands"
    elif listed.word in group.commands:
        reason = f"{group.name!r} already has a command of this name"
    else:
        group.add_command(LazyCommand(listed))
        return
    logger.warning("Command %r of %s is refused: %s.", listed.name, listed.origin, reason)


class LazyGroup(TyperGroup):
    """The root command, with the commands of core and of plugins by name and summary."""

    _listed: Optional[tuple[Listed, ...]] = None

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """Return the context; during shell completion, warnings are suppressed."""
        if extra.get("resilient_parsing"):
            logging.disable()
            sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115 - to the end of this process
        return super().make_context(info_name, args, parent=parent, **extra)

    def listed(self) -> tuple[Listed, ...]:
        """Return the commands, including subcommands, in the order of listings."""
        if self._listed is None:
            self._listed = _with_missing(cached_commands() or discovered_commands())
        return self._listed

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return [each.name for each in self.listed() if each.factory and not each.group]

    def get_command(self, ctx: Any, cmd_name: str) -> Optional[Any]:
        """Return the stub of a command, or None if there is no such command."""
        for each in self.listed():
            if each.name == cmd_name:
                return LazyCommand(each, [sub for sub in self.listed() if sub.group == cmd_name])
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Optional[str], Any, list[str]]:
        """Find the command that `args` begins with."""
        name = args[0]
        # Completion passes an incomplete word, which is not a mistake.
        is_name = not (name.startswith("-") or ctx.resilient_parsing)
        if is_name and self.get_command(ctx, name) is None:
            self._listed = _with_missing(discovered_commands())  # the cache may be out of date
            if self.get_command(ctx, name) is None:
                ctx.fail(f"no command {name!r}.{near_matches(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


def _with_missing(commands: tuple[Listed, ...]) -> tuple[Listed, ...]:
    """Add the commands of distributions that are not installed."""
    known = {each.name for each in commands}
    missing = {name: one for name, one in provided_commands().items() if name not in known}
    return (*commands, *(Listed(name, "", "", one) for name, one in missing.items()))
