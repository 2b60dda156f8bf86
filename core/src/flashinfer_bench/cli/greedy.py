"""Options that take several values after one flag, as in ``--definitions a b c``."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class GreedyCommand(TyperCommand):
    """A command without positional arguments whose repeatable options take all values that follow.

    ``--local a b`` and ``--local a --local b`` mean the same. Values end at the next option.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write the flag before each of its values, then parse as usual."""
        repeatable = {
            flag
            for param in self.params
            if getattr(param, "multiple", False)
            for flag in param.opts
        }
        return super().parse_args(ctx, spread_values(args, repeatable))


def spread_values(args: list[str], repeatable: set[str]) -> list[str]:
    """Repeat each flag of `repeatable` before every value that follows it.

    Parameters
    ----------
    args : list of str
        A command line.
    repeatable : set of str
        Flags that may be given several times.

    Returns
    -------
    list of str
        The same command line, with one value after each of these flags.
    """
    spread: list[str] = []
    current = ""  # the flag whose values may still follow
    values = 0
    for index, arg in enumerate(args):
        if arg == "--":
            return [*spread, *args[index:]]
        if arg.startswith("-") and len(arg) > 1:
            flag, equals, _ = arg.partition("=")
            current = flag if flag in repeatable else ""
            values = 1 if equals else 0
            spread.append(arg)
            continue
        if current and values:
            spread.append(current)
        values += 1
        spread.append(arg)
    return spread
