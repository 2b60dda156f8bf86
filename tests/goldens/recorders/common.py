"""What several goldens need: a place to write to, and texts without what changes by itself."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def scratch() -> Iterator[Path]:
    """Give a folder to work in, which has the cache and the locks, too."""
    folder = Path(tempfile.mkdtemp(prefix="goldens-")).resolve()
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("FIB_")]:
        del os.environ[name]
    os.environ.update(
        FIB_CACHE_PATH=str(folder / "cache"),
        FIB_LOCK_PATH=str(folder / "locks"),
        FIB_DATASET_PATH=str(folder / "no-dataset"),
        HOME=str(folder),
        COLUMNS="100",
        TERM="dumb",
        NO_COLOR="1",
        TZ="UTC",
        TRITON_INTERPRET="1",
        PYTHONHASHSEED="0",
        PYTHONWARNINGS="ignore",
    )
    try:
        yield folder
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


class Normaliser:
    """Puts a mark in place of paths, times, versions, random names and the name of the CPU.

    Parameters
    ----------
    scratch, root : Path
        Folder of the run, and of the repository.
    known : str
        Text whose uuids are data and stay.
    """

    def __init__(self, scratch: Path, root: Path, known: str = "") -> None:
        self._known = set(re.findall(_UUID, known))
        places = {
            str(scratch): "<scratch>",
            str(root): "<root>",
            sys.prefix: "<env>",
            sys.base_prefix: "<python>",
            _cpu(): "<cpu>",
        }
        self._places = sorted(places.items(), key=lambda pair: -len(pair[0]))

    def text(self, text: str) -> str:
        """Return a text that is the same on each machine."""
        for path, mark in self._places:
            text = text.replace(path, mark)
        text = re.sub(_UUID, self._uuid, text)
        for pattern, mark in _MARKS:
            text = re.sub(pattern, mark, text)
        return text

    def value(self, value: Any) -> Any:
        """Return JSON with all its texts, and its keys, normalised."""
        if isinstance(value, dict):
            return {
                self.text(key): f"<{key}>" if key in _VOLATILE else self.value(one)
                for key, one in value.items()
            }
        if isinstance(value, list):
            return [self.value(one) for one in value]
        return self.text(value) if isinstance(value, str) else value

    def _uuid(self, match: re.Match[str]) -> str:
        return match[0] if match[0] in self._known else "<uuid>"


def _cpu() -> str:
    from flashinfer_bench.utils import hardware_from_device

    return str(hardware_from_device("cpu"))


_UUID = r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
_VOLATILE = ("load_ms", "seconds", "platform", "log")
_MARKS = (
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?", "<time>"),
    (r"(?<=_backup_)[0-9T_-]+", "<time>"),
    (r"\b\d+\.\d+\.\d+(\.\w+)*(\+\w+)?\b", "<version>"),
    (r"\b[\d.,]+ (s|ms|us|ns|GiB|MiB|KiB|kB|MB|GB)\b", r"<n> \1"),
    (r"(?<=python)3\.\d+", "<version>"),
    (r"0x[0-9a-f]{6,}", "<address>"),
    (r"(?<=fib_torch_)[0-9a-f]{16,}", "<digest>"),
)


def common(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is the same in all runs, with ``<differs>`` where it is not."""
    return {key: _common([run.get(key) for run in runs]) for key in runs[0]}


def _common(values: list[Any]) -> Any:
    first = values[0]
    if all(value == first and type(value) is type(first) for value in values):
        return first
    if all(isinstance(value, dict) for value in values):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _common([value.get(key, "<absent>") for value in values]) for key in keys}
    if all(isinstance(value, list) and len(value) == len(first) for value in values):
        return [_common(list(ones)) for ones in zip(*values, strict=True)]
    return "<differs>"
