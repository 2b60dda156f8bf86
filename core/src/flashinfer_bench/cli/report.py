"""``fib report``: the command group, with a command for each report that plugins register."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from flashinfer_bench.cli import options, output
from flashinfer_bench.cli.datasets import open_datasets
from flashinfer_bench.cli.options import GreedyCommand, command_group, option

app = command_group("report", "Rank, compare, plot or merge recorded traces.")
app.callback()(lambda: None)  # without it, a single command would replace the group

ReportFile = Annotated[
    Optional[Path], option("--output", "-o", metavar="FILE", help="Default: stdout.")
]


class _PluginReports:
    """The commands of registered reports, as attributes by name."""

    def __getattr__(self, name: str) -> typer.Typer:
        if name.startswith("__"):
            raise AttributeError(name)

        def report(
            local: options.Local = None,
            hub: options.Hub = None,
            target: ReportFile = None,
            log_level: options.LogLevel = None,
        ) -> None:
            output.set_up_logging(log_level)
            from flashinfer_bench.plugins import default_catalog

            draw = default_catalog().find("report", name).load()
            opened = open_datasets(local, hub)
            text = str(draw(opened.trace_set))
            if target is None:
                output.emit(text)
            else:
                output.write_output(target, text.encode())
                output.emit(str(target))
            raise typer.Exit(opened.exit_code())

        made = typer.Typer(add_completion=False, rich_markup_mode=None)
        made.command(name, cls=GreedyCommand)(report)
        return made


plugin_reports = _PluginReports()
