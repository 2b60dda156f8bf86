"""Stands in for nvidia-ml-py: a GPU that lives in the JSON file ``STAND_IN_NVML``.

What processes set there stays when they die, as the clocks of a GPU do. ``fails`` names the error
code that a function ends with, ``fails_once`` that of its next call.
"""

import fcntl
import json
import os
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
IDLE = {
    "sm": 1980,
    "memory": 2619,
    "reasons": 0,
    "max_sm": 1980,
    "celsius": 41,
    "milliwatt": 112_500,
    "limit": 700_000,
    "percent": 3,
    "pids": [],
    "mig": [0, 0],
    "supported_memory": [2619, 1593],
    "supported_sm": list(range(1980, 330, -15)),
    "locked_sm": None,
    "calls": [],
    "users": 0,
    "fails": {},
    "fails_once": {},
}


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(f"error {value}")
        self.value = value


@contextmanager
def _state():
    with Path(os.environ["STAND_IN_NVML"]).open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        state = IDLE | json.loads(file.read() or "{}")
        try:
            yield state
        finally:
            file.seek(0)
            file.write(json.dumps(state))
            file.truncate()


@contextmanager
def _call(name, *arguments):
    with _state() as state:
        state["calls"].append([name, *arguments])
        code = state["fails_once"].pop(name, state["fails"].get(name))
    if code is not None:
        raise NVMLError(code)
    with _state() as state:
        yield state


def _question(name, key):
    def ask(handle, *arguments):
        with _call(name, *arguments) as state:
            return state[key]

    return ask


def nvmlInit():
    with _call("nvmlInit") as state:
        state["users"] += 1


def nvmlShutdown():
    with _call("nvmlShutdown") as state:
        state["users"] -= 1


def nvmlDeviceGetHandleByUUID(uuid):
    with _call("nvmlDeviceGetHandleByUUID", uuid):
        return uuid


def nvmlDeviceGetClockInfo(handle, kind):
    with _call("nvmlDeviceGetClockInfo", kind) as state:
        return state["locked_sm"] or state["sm"] if kind == NVML_CLOCK_SM else state["memory"]


def nvmlDeviceGetUtilizationRates(handle):
    with _call("nvmlDeviceGetUtilizationRates") as state:
        return SimpleNamespace(gpu=state["percent"], memory=0)


def nvmlDeviceGetComputeRunningProcesses(handle):
    with _call("nvmlDeviceGetComputeRunningProcesses") as state:
        return [SimpleNamespace(pid=pid) for pid in state["pids"]]


nvmlDeviceGetMaxClockInfo = _question("nvmlDeviceGetMaxClockInfo", "max_sm")
nvmlDeviceGetCurrentClocksEventReasons = _question(
    "nvmlDeviceGetCurrentClocksEventReasons", "reasons"
)
nvmlDeviceGetCurrentClocksThrottleReasons = _question(
    "nvmlDeviceGetCurrentClocksThrottleReasons", "reasons"
)
nvmlDeviceGetTemperature = _question("nvmlDeviceGetTemperature", "celsius")
nvmlDeviceGetPowerUsage = _question("nvmlDeviceGetPowerUsage", "milliwatt")
nvmlDeviceGetEnforcedPowerLimit = _question("nvmlDeviceGetEnforcedPowerLimit", "limit")
nvmlDeviceGetMigMode = _question("nvmlDeviceGetMigMode", "mig")
nvmlDeviceGetSupportedMemoryClocks = _question(
    "nvmlDeviceGetSupportedMemoryClocks", "supported_memory"
)
nvmlDeviceGetSupportedGraphicsClocks = _question(
    "nvmlDeviceGetSupportedGraphicsClocks", "supported_sm"
)


def nvmlDeviceSetGpuLockedClocks(handle, low, high):
    with _call("nvmlDeviceSetGpuLockedClocks", low, high) as state:
        state["locked_sm"] = high


def nvmlDeviceResetGpuLockedClocks(handle):
    with _call("nvmlDeviceResetGpuLockedClocks") as state:
        state["locked_sm"] = None
