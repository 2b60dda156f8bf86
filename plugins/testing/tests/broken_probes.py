"""Probes with one defect each, and a good one."""

from __future__ import annotations

import os
import time

from flashinfer_bench.plugins import Availability

ASKED: list[int] = []


def good():
    return Availability(True, "toy 1.0")


def unavailable():
    return Availability(False, "toycc is not installed", "install toycc")


def raises():
    raise RuntimeError("no toy here")


def slow():
    time.sleep(1.0)
    return Availability(True, "toy 1.0")


def moody():
    ASKED.append(1)
    return Availability(True, f"toy 1.{len(ASKED)}")


def heavy():
    import numpy

    return Availability(True, f"numpy {numpy.__version__}")


def sets_variable():
    os.environ["TOY_HOME"] = "."
    return Availability(False, "toycc is not installed")


def imports_library():
    import broken_library

    return Availability(True, broken_library.__name__)
