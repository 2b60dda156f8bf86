"""``fib fleet``: what a cluster has and does. Options of ``fib run``: which part of it to use."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Optional

from fib_executor_ray.fitness import deviation
from fib_executor_ray.settings import FleetSettings, use_fleet, was_taken
from flashinfer_bench.cli.options import AsJson, LogLevel, command_group, option
from flashinfer_bench.cli.output import (
    Column,
    document_of,
    emit_document,
    set_up_logging,
    table,
    talk,
)
from flashinfer_bench.cli.run_options import RunAddition
from flashinfer_bench.errors import CapabilityError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fib_executor_ray.cluster import Node

_ANSWER_S = 5.0

Address = Annotated[
    Optional[str],
    option(
        "--ray-address",
        metavar="HOST:PORT",
        help="Ray cluster. Default: RAY_ADDRESS, else the one on this machine.",
    ),
]


def add_to_run(
    hardware: Annotated[
        Optional[list[str]],
        option(
            "--hardware",
            metavar="TEXT...",
            help="With --executor ray: only devices whose name contains one of these.",
        ),
    ] = None,
    ray_address: Address = None,
    ray_nodes: Annotated[
        Optional[list[str]],
        option(
            "--ray-nodes",
            metavar="KEY[=VALUE]",
            help="Only nodes with this label or custom resource. Repeatable.",
        ),
    ] = None,
    ray_resource: Annotated[
        Optional[str],
        option(
            "--ray-resource",
            metavar="NAME",
            help="Ray resource of which a device is one unit. Default: GPU; on CPUs the node.",
        ),
    ] = None,
    ray_devices: Annotated[
        Optional[int],
        option(
            "--ray-devices",
            metavar="N",
            min=1,
            help="Use N devices; ask the autoscaler for them, and wait. Default: all there are.",
        ),
    ] = None,
    ray_wait: Annotated[
        Optional[float],
        option("--ray-wait", metavar="S", help="Seconds to wait for devices. Default: 120."),
    ] = None,
    max_deviation: Annotated[
        Optional[str],
        option(
            "--max-deviation",
            metavar="X%",
            help="Drain devices that are off their peers by more. Default: 3% on GPUs.",
        ),
    ] = None,
) -> RunAddition:
    """Take the values of the options that this plugin adds to ``fib run``."""
    given = {
        "--hardware": hardware,
        "--ray-address": ray_address,
        "--ray-nodes": ray_nodes,
        "--ray-resource": ray_resource,
        "--ray-devices": ray_devices,
        "--ray-wait": ray_wait,
        "--max-deviation": max_deviation,
    }
    settings = FleetSettings(
        address=ray_address,
        hardware=tuple(hardware or ()),
        nodes=tuple(ray_nodes or ()),
        resource=ray_resource,
        devices=ray_devices,
        max_deviation=_share(max_deviation),
        **({"wait_s": ray_wait} if ray_wait is not None else {}),
    )
    use_fleet(settings)
    return FleetOptions([flag for flag, value in given.items() if value], settings)


class FleetOptions(RunAddition):
    """Ends a run for which options of a fleet are given, but which is on this machine.

    Parameters
    ----------
    flags : list of str
        The options that are given.
    settings : FleetSettings
        Made of them.
    """

    def __init__(self, flags: list[str], settings: FleetSettings) -> None:
        self._flags, self._settings = flags, settings

    def started(self, total: int) -> None:
        """Raise `ConfigError` if no fleet has taken the settings."""
        if self._flags and not was_taken(self._settings):
            raise ConfigError(
                f"{self._flags[0]} is for a fleet, and this run is on this machine",
                hint="add --executor ray",
            )


def _share(text: Optional[str]) -> Optional[float]:
    if text is None:
        return None
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise ConfigError(
            f"--max-deviation {text!r} is not a share above 0", hint="for example 3% or 0.03"
        )
    return value


_HELP = "Show the nodes and devices of a Ray cluster, and what they do."
app = command_group("fleet", _HELP)


@app.callback(help=_HELP)
def fleet() -> None:
    """Keep ``status`` a word of its own, though there is no other yet."""


@dataclass(frozen=True)
class DeviceStatus:
    """A device of a node, or a node on which nothing is judged.

    Attributes
    ----------
    node, device : str
        Their names; the device is empty if nothing is judged there.
    hardware : str
        Name of the hardware, or what the node has.
    fitness : float, optional
        How far its latest health check is off those of its peers; None without one.
    evaluations : int, optional
        How many its judge has done.
    doing : str
        What is being evaluated, and for how long.
    """

    node: str
    device: str
    hardware: str
    fitness: Optional[float] = None
    evaluations: Optional[int] = None
    doing: str = ""


_COLUMNS = (
    Column("node", "node"),
    Column("device", "device"),
    Column("hardware", "hardware"),
    Column("fitness", "fitness", people=False),
    Column(
        "off peers",
        lambda row: "" if row.fitness is None else f"{row.fitness:+.1%}",
        programs=False,
    ),
    Column("evaluations", "evaluations"),
    Column("doing", "doing"),
)


@app.command("status")
def status(
    ray_address: Address = None, as_json: AsJson = False, log_level: LogLevel = None
) -> None:
    """List nodes and devices, how fit they are, and what is evaluated on them."""
    from importlib.util import find_spec

    set_up_logging(log_level)
    if find_spec("ray") is None:
        raise CapabilityError("ray is not installed", hint="pip install 'ray>=2.40'")
    from fib_executor_ray import cluster

    cluster.connect(ray_address)
    nodes = cluster.list_nodes()
    rows = device_rows(nodes, _judges())
    if as_json:
        emit_document(devices=[document_of(_COLUMNS, row) for row in rows])
        return
    table("Fleet", _COLUMNS, rows)
    busy = sum(bool(row.doing) for row in rows)
    talk(f"{len(nodes)} nodes, {sum(bool(row.device) for row in rows)} devices, {busy} at work")


def _judges() -> list[dict[str, Any]]:
    """Ask all judges of the cluster what they do."""
    import ray
    from ray.exceptions import RayError
    from ray.util import list_named_actors

    from fib_executor_ray.cluster import JUDGE, NAMESPACE

    asked = []
    for one in list_named_actors(all_namespaces=True):
        if one["namespace"] == NAMESPACE and one["name"].startswith(JUDGE):
            try:
                judge = ray.get_actor(one["name"], namespace=NAMESPACE)
            except ValueError:  # it has ended
                continue
            asked.append(judge.status.options(concurrency_group="status").remote())
    if not asked:
        return []
    ready, _ = ray.wait(asked, num_returns=len(asked), timeout=_ANSWER_S)
    told = []
    for reference in ready:
        try:
            told.append(json.loads(ray.get(reference)))
        except RayError:  # it has ended, or has not begun
            continue
    return told


def device_rows(nodes: Iterable[Node], judges: Sequence[dict[str, Any]]) -> list[DeviceStatus]:
    """Return a row for each device on which something is judged, and for each other node."""
    rows = []
    for one in judges:
        peers = [
            other["seconds"]
            for other in judges
            if other is not one and other["hardware"] == one["hardware"] and "seconds" in other
        ]
        doing = ""
        if "solution" in one:
            seconds = max(0.0, time.time() - one["since"])
            doing = f"{one['definition']} / {one['solution']} for {seconds:.0f} s"
        off = deviation(one["seconds"], peers) if "seconds" in one else None
        rows.append(
            DeviceStatus(
                one["node"], one["device"], one["hardware"], off, one["evaluations"], doing
            )
        )
    idle = {node.name: node for node in nodes}
    for one in judges:
        idle.pop(one["node"], None)
    for node in idle.values():
        gpus = node.devices("GPU")
        text = f"{gpus} GPUs" if gpus else f"{node.resources.get('CPU', 0):g} cores"
        rows.append(DeviceStatus(node.name, "", text))
    return sorted(rows, key=lambda row: (row.node, row.device))
