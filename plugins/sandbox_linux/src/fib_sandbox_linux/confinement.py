"""Drop every right that a solution does not need before any of its code runs.

Each measure has its own module, is attempted directly, and does not depend on the others. A
candidate cannot undo any of them.

=====================  ============================================================
measure                what is prevented
=====================  ============================================================
``resource-limits``    core dumps, huge files
``memory-limit``       exceeding the memory of one candidate (CPU only)
``process-limit``      excessive numbers of processes
``freezer``            running while the judge reads the results
``network-namespace``  access to the network and to others' shared memory
``mount-namespace``    changing files (or modes, times) elsewhere; locks
``capabilities``       privileges of root
``no-new-privileges``  regaining any of these rights
``landlock-files``     writing elsewhere, memory of other processes
``landlock-network``   TCP
``landlock-signals``   signals to, and abstract sockets of, other processes
``system-calls``       leaving the process group, debugging, mounting, clocks, …
=====================  ============================================================
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Optional

from fib_sandbox_linux import landlock, limits, namespaces, seccomp, system
from fib_sandbox_linux.system import Unavailable
from flashinfer_bench import env
from flashinfer_bench.bench import locks
from flashinfer_bench.bench.candidate.processes import end_idle_threads
from flashinfer_bench.bench.confinement import SandboxMethod
from flashinfer_bench.compile.cache import LOCKS, ToolGuard, guard_tools, use_overlay

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

_DEVICES = ("null", "zero", "full", "random", "urandom")
_GPU_DEVICES = ("nvidia*", "dxg")
# Files that tools read besides those named by the environment. Of /proc, nothing that belongs to a
# process: its environment may hold secrets. Of /etc, only what locates compilers and libraries.
_TOOLS_READ = (
    *("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/opt", "/nix/store"),
    *("/gnu/store", "/etc/alternatives", "/etc/clang", "/etc/ld.so.cache", "/etc/ld.so.conf"),
    *("/etc/ld.so.conf.d", "/etc/ld.so.preload", "/etc/localtime", "/etc/nvcc.profile"),
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm", "/sys/devices/system"),
)
_MAX_REASON = 500
_BY_THREAD = (
    *("network-namespace", "mount-namespace", "capabilities"),
    *("landlock-files", "landlock-network", "landlock-signals"),
)


# Environment variables for the caches of libraries.
_CACHES = {
    "CUDA_CACHE_PATH": "cuda",
    "CUPY_CACHE_DIR": "cupy",
    "CUTE_DSL_CACHE_DIR": "cute_dsl",
    "DG_JIT_CACHE_DIR": "deep_gemm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "NUMBA_CACHE_DIR": "numba",
    "TILELANG_CACHE_DIR": "tilelang/cache",
    "TILELANG_TMP_DIR": "tilelang/tmp",
    "TORCHINDUCTOR_CACHE_DIR": "torch_inductor",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "TRITON_CACHE_DIR": "triton/cache",
    "TRITON_HOME": "triton",
    "TVM_FFI_CACHE_DIR": "tvm_ffi",
    "XDG_CACHE_HOME": "other",
}
# FlashInfer kernels that are downloaded instead of compiled: readable where they are stored.
_CUBINS, _CUBINS_PLACE = "FLASHINFER_CUBIN_DIR", Path(".cache", "flashinfer", "cubins")


class LinuxSandbox(SandboxMethod):
    """Applies all measures that the kernel supports; see `confine`."""

    needed = MappingProxyType(
        {
            "writing to other files": ("landlock-files", "mount-namespace"),
            "reading the judge's memory": ("landlock-files",),
            "killing the judge": ("landlock-signals",),
            "the network": ("network-namespace", "system-calls"),
            "leaving its process group": ("system-calls",),
            "gaining privileges": ("no-new-privileges",),
            "starting unlimited processes": ("process-limit",),
            "writing unlimited files": ("resource-limits",),
        }
    )
    needed_on_cpu = MappingProxyType({"taking all memory": ("memory-limit",)})

    def confine(
        self, writable: Sequence[str], *, hidden: Sequence[str], device: str, workdir: Path
    ) -> tuple[list[str], dict[str, str]]:
        """Apply all measures that this system supports; does not raise if it supports none."""
        return confine(writable, hidden=hidden, device=device, workdir=workdir)

    def adopt(self, pid: int, *, device: str) -> None:
        """Put a fresh process in its own control groups, which takes the kernel milliseconds."""
        most = limits.Limits.of_this_machine()
        controllers: dict[str, Optional[int]] = {"pids": most.processes}
        if device == "cpu":
            controllers["memory"] = most.memory_bytes
        # The freezer last: it may be the only one of the newer kind, whose groups take longest.
        for controller, limit in {**controllers, "freezer": None}.items():
            with suppress(Unavailable):  # it will tell when it confines itself
                limits.join_group(controller, limit, pid=pid)

    def tidy(self) -> None:
        """Remove the control groups of processes that have ended."""
        limits.remove_empty_groups()


def confine(
    writable: Sequence[str],
    *,
    hidden: Sequence[str] = (),
    device: str,
    workdir: Path,
    only: Optional[Collection[str]] = None,
) -> tuple[list[str], dict[str, str]]:
    """Apply all measures that this system supports; does not raise if it supports none.

    Parameters
    ----------
    writable : sequence of str
        Additional folders that stay writable, besides the process's own. Libraries keep compiled
        code in the first of them.
    hidden : sequence of str
        Additional folders to hide, besides those of locks; they appear empty if mounts are
        possible.
    device : str
        Device that the solution uses: ``cpu``, ``cuda`` or ``cuda:N``.
    workdir : Path
        The process's own folder, which is its working directory.
    only : collection of str, optional
        Names of the measures to apply, for testing them individually; default: all.

    Returns
    -------
    applied : list of str
        Names of the measures in effect.
    missing : dict of str to str
        The other measures, and the reasons.
    """
    folders = [workdir.absolute(), *map(Path, writable)]
    _settle_caches(folders)
    others = end_idle_threads()
    applied: list[str] = []
    missing: dict[str, str] = {}
    for name, measure in _measures(folders, hidden, on_gpu=device != "cpu", applied=applied):
        if only is not None and name not in only:
            continue
        try:
            measure()
        except (OSError, ValueError, Unavailable) as error:
            missing[name] = str(error)[:_MAX_REASON]
        else:
            applied.append(name)
    if others:
        # Threads share memory: a measure that misses one thread is ineffective.
        reason = f"{others} other threads of the process are not confined"
        missing |= {name: reason for name in _BY_THREAD if name in applied}
        applied = [name for name in applied if name not in _BY_THREAD]
    return applied, missing


def _enter(ruleset: int) -> None:
    system.forbid_new_privileges()  # required for processes other than root
    landlock.enter(ruleset)


def _measures(
    folders: Sequence[Path], hidden: Sequence[str], *, on_gpu: bool, applied: Collection[str]
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the measures in an order in which none prevents another."""
    most = limits.Limits.of_this_machine()
    yield "resource-limits", partial(limits.limit_files, most)
    yield "process-limit", partial(_limit_processes, most)
    yield "freezer", partial(limits.join_group, "freezer")
    if not on_gpu:
        yield "memory-limit", partial(limits.limit_memory, most)
    yield "network-namespace", namespaces.leave_network
    yield "mount-namespace", partial(_leave_mounts, folders, hidden, most, on_gpu=on_gpu)
    yield "capabilities", _drop_capabilities
    yield "no-new-privileges", system.forbid_new_privileges
    # A private /dev/shm is equivalent to a folder of its own.
    places = [*folders, Path("/dev/shm"), *_devices(on_gpu=on_gpu)]
    yield "landlock-files", partial(landlock.forbid_writing, places)
    yield "landlock-network", landlock.forbid_network
    yield "landlock-signals", landlock.forbid_signals
    alone = "network-namespace" in applied
    yield "system-calls", partial(seccomp.filter_calls, network_is_own=alone)


def _settle_caches(folders: Sequence[Path]) -> None:
    """Put compiled code in a permitted folder, separate from other processes."""
    shared = env.cache_path()
    if shared in folders:  # a process that compiles for others, and runs no candidate code
        _redirect_caches(folders[0])
        guard_tools(_tool_guard(folders[0], shared))
    else:
        own = folders[1] if len(folders) > 1 else folders[0]
        _redirect_caches(own)
        use_overlay(own / "builds")


def _redirect_caches(folder: Path) -> None:
    """Make libraries keep compiled code and temporary files in `folder`.

    In their default folders other solutions would find and use these files.
    """
    base = os.environ.get("FLASHINFER_WORKSPACE_BASE") or Path.home()
    cubins = Path(base, _CUBINS_PLACE)
    if cubins.is_dir():
        os.environ.setdefault(_CUBINS, str(cubins))
    for name, place in _CACHES.items():
        os.environ[name] = str(folder / place)


def _tool_guard(workdir: Path, shared: Path) -> ToolGuard:
    """Return a guard that restricts compilers, which read untrusted sources, to their build.

    Compilers quote the files they read, and their logs are published with traces.
    """

    @contextmanager
    def guard(cwd: Path, readable: Sequence[Path]) -> Iterator[Optional[Callable[[], None]]]:
        folders = [workdir, *_devices(on_gpu=False)]
        if shared in cwd.parents:
            folders.append(shared.joinpath(*cwd.relative_to(shared).parts[:2]))
        try:
            places = [*map(Path, _TOOLS_READ), *readable]
            with landlock.write_ruleset(folders, places) as ruleset:
                yield partial(_enter, ruleset)
        except Unavailable:
            yield None

    return guard


def lock_places() -> list[Path]:
    """Return the paths to hide from a process that must not hold locks of devices or builds.

    Returns
    -------
    list of Path
        Folders of locks, and the lock files in folders that contain other files as well.
    """
    of_builds = env.cache_path() / LOCKS
    with suppress(OSError):
        of_builds.mkdir(parents=True, exist_ok=True)
    with suppress(OSError), locks.open_lock_folder():
        pass
    places = [of_builds]
    for folder in (env.lock_path(), locks.COMMON):
        with suppress(OSError):
            if folder is not None:
                everything = list(folder.iterdir())
                files = sorted(folder.glob("device-*.lock"))
                places += [folder] if len(files) == len(everything) else files
    return places


def _leave_mounts(
    folders: Sequence[Path], hidden: Sequence[str], most: limits.Limits, *, on_gpu: bool
) -> None:
    writable = [*folders, *_driver_folders()] if on_gpu else folders
    # A process that compiles for others must take the locks of their builds.
    places = [place for place in lock_places() if place.parent not in folders]
    places += map(Path, hidden)
    namespaces.leave_mounts(writable, shared_bytes=most.memory_bytes, hidden=places)


def _drop_capabilities() -> None:
    # Is this process in the initial user namespace, with all users?
    everyone = Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
    system.drop_capabilities(1 << system.READ_ANY_FILE if everyone else 0)


def _limit_processes(most: limits.Limits) -> None:
    try:
        limits.join_group("pids", most.processes)
    except Unavailable as error:
        try:
            limits.limit_processes(most)
        except Unavailable as other:
            raise Unavailable(f"{error}; {other}") from None


def _devices(*, on_gpu: bool) -> list[Path]:
    devices = [Path("/dev", name) for name in _DEVICES]
    if on_gpu:
        devices += [path for pattern in _GPU_DEVICES for path in Path("/dev").glob(pattern)]
        devices += _driver_folders()
    return devices


def _driver_folders() -> list[Path]:
    # The driver names its threads, so only this process's part of /proc is writable.
    return [Path(f"/proc/{os.getpid()}/task")]
