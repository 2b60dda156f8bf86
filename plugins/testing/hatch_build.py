"""Puts the example plugin into the wheel, where ``fib plugins new`` takes it from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# As in fib_plugin_new.command: what tools leave in a folder that they work in.
_LEFT_BY_TOOLS = re.compile(
    r"__pycache__|\.(pytest|mypy|ruff)_cache|\.(venv|nox|tox|hypothesis)|build|dist|traces"
    r"|.*\.(pyc|egg-info)"
)


class TemplateHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the template's files: from the repository, or from the source archive made there."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files that the build includes besides the package."""
        if version == "editable":  # runs from the repository, and finds the example there
            return
        template = self._template()
        target = "fib_plugin_new/_template" if self.target_name == "wheel" else "_template"
        for path in sorted(template.rglob("*")):
            relative = path.relative_to(template)
            if path.is_file() and not any(map(_LEFT_BY_TOOLS.fullmatch, relative.parts)):
                build_data["force_include"][str(path)] = f"{target}/{relative.as_posix()}"

    def _template(self) -> Path:
        root = Path(self.root)
        packed = root / "_template"
        folder = packed if packed.is_dir() else root.parents[1] / "examples" / "fib-builder-example"
        if not (folder / "pyproject.toml").is_file():
            raise FileNotFoundError(f"the example plugin is neither in {packed} nor in {folder}")
        return folder
