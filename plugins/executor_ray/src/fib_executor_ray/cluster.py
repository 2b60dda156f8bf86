"""A cluster: connecting to it, and its nodes."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flashinfer_bench.errors import CapabilityError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

NAMESPACE = "flashinfer-bench"
JUDGE = "fib judge "
"""Begins the names of judges."""

_CONNECT_S = 5.0
_HINT = (
    "start one with 'ray start --head', or name the HOST:PORT of one with --ray-address or "
    "RAY_ADDRESS; fib must run on one of its nodes"
)


@dataclass(frozen=True, eq=False)
class Node:
    """A node of a cluster.

    Attributes
    ----------
    id : str
        By which Ray knows it.
    name : str
        By which people know it; unique within the cluster.
    resources : mapping of str to float
        What it has.
    labels : mapping of str to str
        Its labels.
    """

    id: str
    name: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]

    def matches(self, wanted: Iterable[str]) -> bool:
        """Return whether it has all these labels or custom resources: KEY, or KEY=VALUE."""
        return all(self._has(*text.partition("=")) for text in wanted)

    def _has(self, key: str, equals: str, value: str) -> bool:
        if equals:
            return self.labels.get(key) == value
        return key in self.labels or self.resources.get(key, 0) > 0

    def devices(self, resource: str | None) -> int:
        """Return how many devices it has: units of a resource, or itself if there is none."""
        return 1 if resource is None else int(self.resources.get(resource, 0))


def connect(address: str | None) -> bool:
    """Connect to a cluster.

    Parameters
    ----------
    address : str, optional
        ``HOST:PORT``. Default: ``RAY_ADDRESS``, else the one on this machine.

    Returns
    -------
    bool
        Whether the connection is new; False if this program had one.

    Raises
    ------
    ConfigError
        If it is no such address.
    CapabilityError
        If there is no cluster, or it cannot be used from here.
    """
    # Else it prints its own stack when fib is told to end.
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
    import ray

    if ray.is_initialized():
        return False
    given = address or os.environ.get("RAY_ADDRESS") or "auto"
    if given.startswith("ray://"):
        raise ConfigError(
            f"{given} is an address for Ray Client, which cannot stream results",
            hint="run fib on a node of the cluster, with HOST:PORT or 'auto'; "
            "'ray job submit' does so from elsewhere",
        )
    if given != "auto":
        _require_listening(given)
    # It would show the logs of nodes that end; runners tell what was lost.
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    try:
        ray.init(
            address=given,
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        with suppress(Exception):
            ray.shutdown()
        raise CapabilityError(f"no Ray cluster at {given!r}: {reason}", hint=_HINT) from error
    return True


def _require_listening(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal()):
        raise ConfigError(f"the address {address!r} is not of the form HOST:PORT", hint=_HINT)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise CapabilityError(f"no Ray cluster at {address!r}: {error}", hint=_HINT) from error


def put(data: bytes) -> Any:
    """Put bytes into Ray's object store, and return a reference."""
    import ray

    return ray.put(data)


def list_nodes() -> list[Node]:
    """Return the nodes that are alive, by name."""
    import ray

    return named_nodes([one for one in ray.nodes() if one["Alive"]])


def named_nodes(told: Sequence[Mapping[str, Any]]) -> list[Node]:
    """Return nodes as Ray describes them; those of the same name get a part of their id."""
    names = [_name_of(one) for one in told]
    return sorted(
        (
            Node(
                one["NodeID"],
                name if names.count(name) == 1 else f"{name}-{one['NodeID'][-6:]}",
                dict(one["Resources"]),
                dict(one.get("Labels", {})),
            )
            for one, name in zip(told, names, strict=True)
        ),
        key=lambda node: node.name,
    )


def _name_of(told: Mapping[str, Any]) -> str:
    name, address = told.get("NodeName", ""), told.get("NodeManagerAddress", "")
    return str(name if name and name != address else told.get("NodeManagerHostname") or address)
