"""Bytes, operations and limits of workloads, and how close results come to them."""

import json
import math
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from fib_judge.calibration import Ceilings, store_ceilings
from fib_report.roofline import Rooflines, recorded_integers, work_of
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.blobs import save_tensors
from flashinfer_bench.data.run_source import Clock, Task

CEILINGS = Ceilings(
    device="cpu", hardware="Test CPU", torch="2", created="today", call_ms=2e-6,
    bytes_per_s={1 << 10: 8e9, 1 << 27: 1e9}, flops_per_s={"float32": 4e9},
)  # fmt: skip
PAGED = {
    "axes": {"N": {"type": "var"}, "pages": {"type": "const", "value": 1000}},
    "inputs": {
        "x": {"shape": ["N"], "dtype": "float32"},
        "cache": {"shape": ["pages", "N"], "dtype": "float32"},
        "rows": {"shape": ["N"], "dtype": "int32"},
    },
}
PRODUCT = {
    "op_type": "gemm",
    "axes": {"N": {"type": "var"}, "K": {"type": "const", "value": 64}},
    "inputs": {
        "A": {"shape": ["N", "K"], "dtype": "float32"},
        "B": {"shape": ["K", "M"], "dtype": "float32"},
    },
    "outputs": {"C": {"shape": ["N", "M"], "dtype": "float32"}},
}
PRODUCT["axes"]["M"] = {"type": "const", "value": 32}


@pytest.fixture
def definition(maker):
    def make(**changes):
        maker.definition(**changes)
        return TraceSet.from_path(maker.root).definitions["double"]

    return make


@pytest.fixture
def calibrated(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    store_ceilings(CEILINGS)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (2 * 16 * 4, 0, "sizes", ())),
        # Indices choose pages of the cache, so its size says nothing; the rest is read anyway.
        (PAGED, (3 * 16 * 4, 0, "some sizes", ("float32",))),
        (PRODUCT, (4 * (16 * 64 + 64 * 32 + 16 * 32), 2 * 16 * 64 * 32, "sizes", ("float32",) * 2)),
    ],
)
def test_work_without_an_op_family(definition, changes, expected):
    assert work_of(definition(**changes), {"N": 16}) == expected


def test_without_calibration_there_are_rates_and_no_limit(
    definition, make_result, monkeypatch, tmp_path
):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "empty"))
    found = Rooflines({"double": definition()}).of(make_result(latency_ms=1e-3))
    assert found.gb_per_s == pytest.approx(128 / 1e-6 / 1e9)
    assert (found.limit_ms, found.share, found.tflop_per_s) == (None, None, None)


@pytest.mark.parametrize(
    ("axes", "cache", "changes", "limit_ms", "by"),
    [
        ({"N": 1 << 10}, "warm", {}, 8192 / 8e9 * 1e3, "bytes"),
        ({"N": 1 << 10}, "cold", {}, 8192 / 1e9 * 1e3, "bytes"),
        ({"N": 1}, "warm", {}, 8 / 8e9 * 1e3, "call"),
        ({"N": 1 << 10}, "warm", PRODUCT, 2 * 2**10 * 64 * 32 / 4e9 * 1e3, "operations"),
    ],
)
def test_the_limit_is_the_longest_of_three_times(
    definition, make_result, calibrated, axes, cache, changes, limit_ms, by
):
    clock = Clock("cpu", cache)
    found = Rooflines({"double": definition(**changes)}).of(make_result(axes=axes, clock=clock))
    assert found.limited_by == by
    assert found.limit_ms == pytest.approx(max(limit_ms, 2e-6))
    assert found.share == pytest.approx(found.limit_ms)


def test_mean_shares_need_all_of_them(definition, make_result, calibrated):
    rooflines = Rooflines({"double": definition()})
    some = [make_result(latency_ms=latency, axes={"N": 1024}) for latency in (1.0, 4.0)]
    share = rooflines.of(some[0]).share
    assert rooflines.mean_share(some) == pytest.approx(share / 2)
    assert rooflines.mean_share([*some, make_result(status="TIMEOUT")]) == pytest.approx(share / 2)
    assert rooflines.mean_share([*some, make_result(workload="w2", axes={})]) is None
    assert rooflines.mean_share([]) is None


def test_nothing_is_held_against_a_busy_calibration(definition, make_result, calibrated):
    store_ceilings(replace(CEILINGS, settled=False))
    found = Rooflines({"double": definition()}).of(make_result())
    assert found.limit_ms is None


def test_no_share_where_only_a_part_of_the_bytes_is_known(definition, make_result, calibrated):
    found = Rooflines({"double": definition(**PAGED)}).of(make_result())
    assert found.gb_per_s
    assert found.share is None


def test_the_best_are_shown_beside_the_limit(fib, maker, calibrated):
    root = maker.sound().root
    drawn = ("report", "best", "--local", root, "--format", "markdown")
    assert "share_of_limit" in fib(*drawn).stdout
    (best,) = json.loads(fib("report", "best", "--local", root, "--json").stdout)["best"]
    first, second = best["results"]
    assert first["share_of_limit"] == pytest.approx(first["limit_ms"] / first["latency_ms"])
    assert best["share_of_limit"] == pytest.approx(
        math.sqrt(first["share_of_limit"] * second["share_of_limit"])
    )
    assert first["work"]["basis"] == "sizes"
    assert first["gb_per_s"] == pytest.approx(first["work"]["bytes"] / first["latency_ms"] / 1e6)
    store_ceilings(replace(CEILINGS, settled=False))
    assert "share_of_limit" not in fib(*drawn).stdout


def test_recorded_tables_say_what_is_read(maker, make_result, monkeypatch):
    torch = pytest.importorskip("torch")
    table = torch.tensor([0, 3, 5], dtype=torch.int32)
    save_tensors(maker.root / "blob/t.safetensors", {"rows": table})
    maker.definition(**PAGED)
    definitions = TraceSet.from_path(maker.root).definitions
    asked = {"load": lambda _: lambda one, axes, inputs: (int(inputs["rows"].sum()), 1)}
    family = SimpleNamespace(spec=SimpleNamespace(work="x:work"), **asked)
    catalog = SimpleNamespace(family_of=lambda _: family)
    monkeypatch.setattr("fib_report.roofline.default_catalog", lambda: catalog)
    recorded = {"type": "safetensors", "path": "blob/t.safetensors", "tensor_key": "rows"}
    text = json.dumps({"inputs": {"rows": recorded, "x": {"type": "random"}}})
    task = Task("double", "a", "w1", {"N": 3}, text)
    found = Rooflines(definitions, maker.root).of(make_result(task=task))
    assert (found.work.nbytes, found.work.basis) == (8, "op family")
    for path in ("blob/none.safetensors", "../t.safetensors"):
        lost = text.replace("blob/t.safetensors", path)
        integers = recorded_integers(definitions["double"], lost, maker.root)
        assert integers == {}
