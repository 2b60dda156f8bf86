"""A writer of datasets, shared with the tests of the command line, and a browser."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator


def _load(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_maker = _load("fib_tests_dataset_maker", Path(__file__).parents[1] / "cli" / "dataset_maker.py")
_chromium = _load("fib_tests_chromium_pipe", Path(__file__).with_name("chromium_pipe.py"))

# A busy machine is no failure.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


@pytest.fixture
def maker(tmp_path: Path) -> Any:
    """Writes into an empty dataset."""
    return _maker.DatasetMaker(tmp_path / "dataset")


@pytest.fixture(scope="session")
def _one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if _chromium.CHROMIUM is None:
        pytest.skip("chromium is not installed")
    browser = _chromium.Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def browser(_one_browser: Any) -> Any:
    """A real browser, with a light system and a wide window."""
    _one_browser.prefer("light")
    _one_browser.size(1280)
    return _one_browser


@pytest.fixture
def unpack() -> Any:
    """Reads what a page carries: ``unpack(page, "data")``."""

    def read(page: str, name: str) -> Any:
        found = re.search(rf'<script type="application/octet-stream" id="{name}">([^<]*)<', page)
        assert found is not None
        return json.loads(zlib.decompress(base64.b64decode(found[1], validate=True)))

    return read


@pytest.fixture
def make_result() -> Any:
    """Makes a result; keyword arguments replace its fields."""
    from flashinfer_bench.data import EvaluationStatus
    from flashinfer_bench.report import Result

    def make(solution: str = "alice_double", **changes: Any) -> Result:
        status = EvaluationStatus(changes.pop("status", "PASSED"))
        passed = status is EvaluationStatus.PASSED
        latency = changes.pop("latency_ms", 1.0 if passed else None)
        reference = changes.pop("reference_latency_ms", 2.0 if passed else None)
        fields: dict[str, Any] = {
            "definition": "double",
            "op_type": "op",
            "solution": solution,
            "author": solution.partition("_")[0],
            "language": "python",
            "workload": "w1",
            "axes": {"N": 16},
            "hardware": "Test CPU",
            "status": status,
            "timestamp": "2026-01-01T00:00:00",
            "log": "",
            "latency_ms": latency,
            "reference_latency_ms": reference,
            "speedup": reference / latency if latency and reference else None,
        }
        return Result(**{**fields, **changes})

    return make
