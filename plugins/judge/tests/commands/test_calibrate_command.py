"""``fib calibrate`` on figures that a stand-in measures, and what it shows and keeps."""

import pytest
from msgspec.structs import replace

from fib_judge.calibration import Ceilings, load_ceilings
from fib_tests.cli import rows

pytestmark = pytest.mark.torch

NAME = "A CPU (4 cores)"
FOUND = Ceilings(
    device="cpu",
    hardware=NAME,
    bytes_per_s={16 << 10: 1.5e10, 1 << 20: 2e11, 3 << 30: 5e9},
    flops_per_s={"float32": 1.25e12, "int8": 8e12},
    call_ms=1e-4,
    torch="9.9",
    created="2026-01-01T00:00:00Z",
)


@pytest.fixture
def measured(monkeypatch):
    """What the next measurements find; the last one stays."""
    results = [FOUND]

    def calibrate(device, *, on_progress=None, **options):
        on_progress(0.5)
        result = results.pop(0) if len(results) > 1 else results[0]
        if isinstance(result, Exception):
            raise result
        return replace(result, device=device)

    monkeypatch.setattr("fib_judge.calibration.calibrate", calibrate)
    monkeypatch.setattr("flashinfer_bench.tensors.hardware_from_device", lambda device: NAME)
    monkeypatch.setattr("flashinfer_bench.bench.backends.choose_devices", lambda d: [d or "cpu"])
    return results


def test_measures_prints_and_stores(fib, measured):
    result = fib("calibrate")
    assert result.exit_code == 0, result.output
    found = rows(result.stdout)
    assert [(row["ceiling"], row["of"], row["value"], row["unit"]) for row in found] == [
        ("bandwidth", "16 KiB", "15", "GB/s"),
        ("bandwidth", "1 MiB", "200", "GB/s"),
        ("bandwidth", "3 GiB", "5", "GB/s"),
        ("matrix product", "float32", "1.25", "TFLOP/s"),
        ("matrix product", "int8", "8", "TFLOP/s"),
        ("shortest call", "", "0.1", "us"),
    ]
    assert {row["device"] for row in found} == {"cpu"}
    assert "measuring cpu" in result.stderr
    assert "calibration" in result.stderr
    assert NAME in result.stderr
    assert load_ceilings("cpu", NAME) == FOUND


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ([], "run 'fib calibrate'"),
        (["--device", "cpu"], "run 'fib calibrate --device cpu'"),
    ],
)
def test_show_of_nothing_says_how_to_get_it(fib, measured, options, hint):
    result = fib("calibrate", "--show", *options)
    assert result.exit_code == 5
    assert result.stdout == ""
    assert "nothing is stored for" in result.stderr
    assert hint in result.stderr


def test_a_busy_machine_is_told_of_until_a_second_look_agrees(fib, measured):
    measured[:] = [replace(FOUND, settled=False)]
    first = fib("calibrate")
    assert first.exit_code == 0
    assert "warning: cpu was busy" in first.stderr
    assert "warning: cpu was busy" in fib("calibrate", "--show").stderr
    assert "warning" not in fib("calibrate").stderr
    stored = load_ceilings("cpu", NAME)
    assert stored.settled


@pytest.mark.parametrize(("device", "code"), [("gpu9", 2), ("cuda:99999", 4)])
def test_a_device_that_is_not_there(fib, device, code):
    result = fib("calibrate", "--device", device)
    assert result.exit_code == code
    assert result.stdout == ""
    assert "error: " in result.stderr
