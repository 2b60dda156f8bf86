"""Which part of a cluster to use."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Optional

GPU_DEVIATION = 0.03
"""How far a GPU may be off its peers in the health check, if nothing else is set."""


@dataclass(frozen=True)
class FleetSettings:
    """Which part of a cluster to use.

    Parameters
    ----------
    address : str, optional
        ``HOST:PORT`` of the cluster. Default: ``RAY_ADDRESS``, else the one on this machine.
    hardware : tuple of str
        Use only hardware whose name, as in traces, contains one of these. Default: all.
    nodes : tuple of str
        ``KEY`` or ``KEY=VALUE``: only nodes with all these labels or custom resources.
    resource : str, optional
        The Ray resource of which each device is one unit. Default: ``GPU`` for CUDA devices; on the
        CPU, each node is one device.
    devices : int, optional
        Ask the cluster's autoscaler for this number of devices, and wait until they are there.
    wait_s : float
        How long to wait for devices: at the start, and after a node is lost.
    max_deviation : float, optional
        How far the health check of a device may be off those of its peers: 0.03 is 3 %. Default:
        0.03 on GPUs, no limit on CPUs, which also do other work.
    check_s : float
        Seconds between two health checks of a device.
    """

    address: Optional[str] = None
    hardware: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    resource: Optional[str] = None
    devices: Optional[int] = None
    wait_s: float = 120.0
    max_deviation: Optional[float] = None
    check_s: float = 600.0


_current: ContextVar[FleetSettings] = ContextVar("fib_fleet")
_taken: ContextVar[FleetSettings] = ContextVar("fib_fleet_taken")


def use_fleet(settings: FleetSettings) -> None:
    """Have later runs of this thread use these settings.

    Parameters
    ----------
    settings : FleetSettings
        They replace the earlier ones.
    """
    _current.set(settings)


def take_fleet() -> FleetSettings:
    """Return the settings for the run that begins."""
    settings = _current.get(FleetSettings())
    _taken.set(settings)
    return settings


def was_taken(settings: FleetSettings) -> bool:
    """Return whether the latest run that divided its work had exactly these settings."""
    return _taken.get(None) is settings
