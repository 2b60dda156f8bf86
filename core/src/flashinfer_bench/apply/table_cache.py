"""Tables on disk: found by everything that they depend on, and checked against it when read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from typing import TYPE_CHECKING, Any, Optional, Union

import msgspec

from flashinfer_bench._version import __version__
from flashinfer_bench.apply import disk
from flashinfer_bench.apply.key_factory import ApplyKeyFactory
from flashinfer_bench.apply.keys import ApplyKey
from flashinfer_bench.apply.source import Entry  # noqa: TC001 - the decoder looks it up

if TYPE_CHECKING:
    from pathlib import Path

    from flashinfer_bench.apply.config import ApplyConfigRegistry
    from flashinfer_bench.apply.hardware import Place
    from flashinfer_bench.apply.snapshot import Snapshot

_logger = logging.getLogger(__name__)

FORMAT = 4
"""Number of the format, raised with every change of it or of the rules of `selection`."""


class StoredChoice(msgspec.Struct, array_like=True, gc=False):
    """A `Choice`, with its key taken apart."""

    axes: tuple[tuple[str, int], ...]
    feats: tuple[tuple[str, Union[bool, int, float, str, None]], ...]
    solution: str
    latency_ms: float
    workload: str

    def key(self) -> ApplyKey:
        """Return the key."""
        return ApplyKey(self.axes, self.feats)


class StoredBar(msgspec.Struct, array_like=True, gc=False):
    """A key for which solutions have failed, taken apart, and their names."""

    axes: tuple[tuple[str, int], ...]
    feats: tuple[tuple[str, Union[bool, int, float, str, None]], ...]
    solutions: tuple[str, ...]

    def key(self) -> ApplyKey:
        """Return the key."""
        return ApplyKey(self.axes, self.feats)


class StoredDefinition(msgspec.Struct, array_like=True, gc=False):
    """A `DefinitionTable`."""

    name: str
    op_type: str
    choices: list[StoredChoice]
    best: Optional[StoredChoice]
    barred: list[StoredBar]


class StoredTable(msgspec.Struct, array_like=True, gc=False):
    """A table and the files of its source.

    Attributes
    ----------
    key_builders : dict of str to str
        For each op type what makes its keys, see `ApplyKeyFactory.identity`.
    definitions : list of StoredDefinition
        In the order of the dataset.
    definition_files, solution_files : dict of str to Entry
        By name.
    problems : list of str
        What was left out of the dataset.
    """

    key_builders: dict[str, str]
    definitions: list[StoredDefinition]
    definition_files: dict[str, Entry]
    solution_files: dict[str, Entry]
    problems: list[str]


_decoder = msgspec.msgpack.Decoder(StoredTable)


def purpose_of(snapshot: Snapshot, configs: ApplyConfigRegistry, place: Place) -> bytes:
    """Return a digest of all that a table depends on, but for the makers of keys.

    These are known only by op type, hence after reading, and are compared by `load`. The root is
    among it because keys may be made from tensors below it, which have no digest here.
    """
    bounds = {
        name: (one.max_atol, one.max_rtol)
        for name, one in sorted(configs.per_definition.items())
        if (one.max_atol, one.max_rtol) != (configs.default.max_atol, configs.default.max_rtol)
    }
    record = [
        FORMAT,
        __version__,
        str(snapshot.root),
        snapshot.identity().hex(),
        place.hardware,
        place.kind,
        sorted(place.versions.items()),
        (configs.default.max_atol, configs.default.max_rtol),
        bounds,
    ]
    return hashlib.sha256(json.dumps(record).encode()).digest()


def load(purpose: bytes) -> Optional[StoredTable]:
    """Return the table that was made for a purpose, None if there is none that can be relied on.

    Parameters
    ----------
    purpose : bytes
        See `purpose_of`.
    """
    payload = disk.read(_file(purpose), purpose)
    if payload is None:
        return None
    with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
        table = _decoder.decode(payload)
        if _is_sound(table) and table.key_builders == key_builders(table.key_builders):
            return table
    return None


def save(purpose: bytes, table: StoredTable) -> bool:
    """Keep a table for a purpose; return whether that was possible."""
    try:
        payload = msgspec.msgpack.encode(table)
    except (OverflowError, UnicodeEncodeError) as error:  # sizes beyond 64 bits, odd file names
        _logger.debug("a table cannot be kept: %s", error)
        return False
    return disk.write(_file(purpose), purpose, payload)


def key_builders(op_types: Any) -> dict[str, str]:
    """Return for each op type what makes its keys."""
    return {op_type: ApplyKeyFactory.identity(op_type) for op_type in op_types}


def _is_sound(table: StoredTable) -> bool:
    """Return whether every name in a table has its file."""
    return all(
        one.name in table.definition_files
        and all(
            choice is None or choice.solution in table.solution_files
            for choice in (*one.choices, one.best)
        )
        for one in table.definitions
    )


def _file(purpose: bytes) -> Path:
    return disk.folder() / f"{purpose.hex()[:32]}.table"
