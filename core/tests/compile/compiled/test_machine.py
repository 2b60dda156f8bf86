"""GPUs are asked for once while a machine runs."""

from __future__ import annotations

import json

import pytest

from flashinfer_bench.compile.toolkit import machine
from flashinfer_bench.compile.toolkit.machine import remembered_devices

H200 = ("GPU-1", (9, 0))
B200 = ("GPU-2", (10, 0))


class Driver:
    """Counts how often it is asked."""

    def __init__(self, *devices):
        self.devices = devices
        self.asked = 0

    def __call__(self):
        self.asked += 1
        return self.devices


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A machine with a driver and one GPU."""
    files = {
        "proc/sys/kernel/random/boot_id": "46d2e105\n",
        "proc/driver/nvidia/version": "NVRM version: 580\n",
        "proc/driver/nvidia/gpus/0000:00:06.0/information": "Model: x",
        "dev/nvidia0": "",
        "dev/nvidiactl": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "_DEV", tmp_path / "dev")
    return tmp_path


def test_the_driver_is_asked_once(host):
    driver = Driver(H200, B200)
    assert remembered_devices(driver) == remembered_devices(driver) == (H200, B200)
    assert driver.asked == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda host: (host / "proc/sys/kernel/random/boot_id").write_text("other"),
        lambda host: (host / "proc/driver/nvidia/version").write_text("NVRM version: 590"),
        lambda host: (host / "proc/driver/nvidia/gpus/0000:00:07.0").mkdir(),
        lambda host: (host / "dev/nvidia1").touch(),
        lambda host: (host / "dev/nvidia0").unlink(),
    ],
)
def test_on_another_machine_it_is_asked_again(host, change):
    assert remembered_devices(Driver(H200)) == (H200,)
    change(host)
    assert remembered_devices(Driver(B200)) == (B200,)


def test_a_gpu_that_this_process_may_not_open(host, monkeypatch):
    assert remembered_devices(Driver(H200)) == (H200,)
    monkeypatch.setattr(machine.os, "access", lambda path, mode: False)
    assert remembered_devices(Driver(B200)) == (B200,)


def test_it_is_asked_anew_on_demand(host):
    remembered_devices(Driver(H200))
    assert remembered_devices(Driver(B200), again=True) == (B200,)
    assert remembered_devices(Driver()) == (B200,)


def test_an_empty_list_is_not_believed(host, cache_folder):
    remembered_devices(Driver(H200))
    file = cache_folder / "machine" / "gpus.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "devices": []}))
    assert remembered_devices(Driver(B200)) == (B200,)


def test_what_does_not_matter(host):
    remembered_devices(Driver(H200))
    (host / "dev/nvidia-uvm").touch()
    (host / "dev/sda1").touch()
    assert remembered_devices(Driver(B200)) == (H200,)


def test_a_driver_that_does_not_answer_is_asked_again(host):
    assert remembered_devices(Driver()) == ()
    assert remembered_devices(Driver(H200)) == (H200,)


def test_without_a_driver_nothing_is_kept(host, cache_folder):
    (host / "proc/driver/nvidia/version").unlink()
    assert remembered_devices(Driver()) == ()
    assert remembered_devices(Driver(H200)) == (H200,)
    assert list(cache_folder.iterdir()) == []


@pytest.mark.parametrize(
    "devices",
    [
        None,
        [["GPU-1"]],
        [["GPU-1", [9, "0 -o /etc/passwd"]]],
        [["GPU-1", [9]]],
        [[1, [9, 0]]],
        [["GPU-1", [9.5, 0]]],
        [["GPU-1", [True, 0]]],
        [3],
    ],
)
def test_what_is_no_list_of_devices_is_not_believed(host, cache_folder, devices):
    remembered_devices(Driver(H200))
    file = cache_folder / "machine" / "gpus.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "devices": devices}))
    assert remembered_devices(Driver(B200)) == (B200,)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000])
def test_a_damaged_file(host, cache_folder, text):
    (cache_folder / "machine").mkdir()
    (cache_folder / "machine" / "gpus.json").write_text(text)
    assert remembered_devices(Driver(H200)) == (H200,)
    assert remembered_devices(Driver()) == (H200,)


def test_a_cache_that_cannot_be_written(host, cache_folder):
    (cache_folder / "machine").write_text("a file")
    driver = Driver(H200)
    assert remembered_devices(driver) == remembered_devices(driver) == (H200,)
    assert driver.asked == 2


def test_nothing_is_left_beside_the_file(host, cache_folder, monkeypatch):
    def refuse(descriptor, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("flashinfer_bench.data.storage._write_all", refuse)
        assert remembered_devices(Driver(H200)) == (H200,)
    assert list((cache_folder / "machine").iterdir()) == []
