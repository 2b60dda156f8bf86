"""``fib info``: one block for a bug report, whatever is missing or broken here."""

import json
import subprocess
import sys

import pytest

from flashinfer_bench import __version__

LINES = ["version", "plugins", "python", "platform", "libraries", "gpus", "cpu", "compilers"]
LINES += ["cache", "dataset", "sandbox", "variables"]
GPU = "NVIDIA H100 80GB HBM3, 81559 MiB, 580.159.04"


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """A driver that tells of two GPUs."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{GPU}'\necho '{GPU}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


def test_one_short_block(fib_process, smi):
    done = fib_process("info")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if line[0] != " "] == LINES
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    assert "2 x NVIDIA H100 80GB HBM3, 81559 MiB, driver 580.159.04" in done.stdout
    assert f"fib-compare={__version__}," in done.stdout


def test_json(fib_process, maker, smi):
    maker.definition()
    env = {
        "FIB_DATASET_PATH": str(maker.root),
        "FIB_HUB_TOKEN": "abc",
        "FLASHINFER_CUBINS": "https://me:pw@host/x",
    }
    found = json.loads(fib_process("info", "--json", env=env).stdout)
    assert [*found] == ["schema_version", *LINES]
    assert found["gpus"] == ["NVIDIA H100 80GB HBM3, 81559 MiB, driver 580.159.04"] * 2
    assert found["dataset"].endswith(", definitions: 1")
    assert found["variables"]["FIB_HUB_TOKEN"] == "***"
    assert found["variables"]["FLASHINFER_CUBINS"] == "https://***@host/x"
    assert set(found["compilers"]) == {"c++", "nvcc", "ninja"}
    assert found["sandbox"].split()[0].strip(";") in ("off", "auto", "strict")


def test_what_is_missing_or_broken_says_so(fib_process, tmp_path):
    (tmp_path / "file").touch()
    env = {
        "FIB_PLUGINS": "nowhere",
        "FIB_STRICT_PLUGINS": "1",
        "FIB_CACHE_PATH": str(tmp_path / "file" / "cache"),
        "FIB_DATASET_PATH": str(tmp_path / "dataset"),
        "PATH": str(tmp_path),
        "HOME": str(tmp_path),
        "CXX": "",
    }
    done = fib_process("info", "--json", env=env)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["plugins"]["nowhere"].startswith("broken (failed to load: ModuleNotFoundError")
    assert found["compilers"]["c++"] == "none"
    assert "is not a folder" in found["cache"]
    assert found["dataset"] == "none (~/dataset does not exist)"
    assert str(tmp_path) not in done.stdout


def test_torch_is_not_imported():
    code = "import sys; sys.argv = ['fib', 'info']; from flashinfer_bench.cli.main import main\n"
    code += "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
