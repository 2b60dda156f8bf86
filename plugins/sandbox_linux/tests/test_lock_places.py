from fib_sandbox_linux.confinement import lock_places
from flashinfer_bench.bench import locks


def test_no_folder_that_holds_locks_can_be_reached(tmp_path, monkeypatch):
    common, cache = tmp_path / "common", tmp_path / "cache"
    monkeypatch.delenv("FIB_LOCK_PATH", raising=False)
    monkeypatch.setenv("FIB_CACHE_PATH", str(cache))
    monkeypatch.setattr(locks, "COMMON", common)
    with locks.device_lock("cpu"):
        pass
    monkeypatch.setenv("FIB_LOCK_PATH", str(tmp_path / "own"))
    assert lock_places() == [cache / "locks", tmp_path / "own", common]
