"""Confined processes: real candidates, and plain children that take single measures."""

import json
import os
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from fib_sandbox_linux.system import Unavailable
from fib_tests.candidates import (
    definition_of,
    eventually,
    exists,
    group_exists,
    plugin_in_reach,
    solution_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def _in_child(*steps):
    """Take `steps` in a forked child; return what the last one returned, or its error as text.

    An error of an earlier step is one of the test: it fails, or skips if the system lacks that.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, json.dumps(_outcome(steps)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.waitpid(pid, 0)
    assert text, "the child ended without an answer"
    kind, value = json.loads(text)
    if kind == "unavailable":
        pytest.skip(f"this machine does not offer it: {value}")
    assert kind != "broken", value
    return value


def _outcome(steps):
    *before, last = steps
    try:
        for step in before:
            step()
    except Unavailable as error:
        return "unavailable", str(error)
    except BaseException:  # noqa: BLE001 - told to the test
        return "broken", traceback.format_exc()
    try:
        return "done", last()
    except BaseException as error:  # noqa: BLE001 - told to the test
        return "failed", type(error).__name__


@pytest.fixture
def in_child():
    """``in_child(*steps)``: what the last step returns in a forked child; see `_in_child`."""
    return _in_child
