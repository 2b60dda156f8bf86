"""What confined workers may still do: the judge's side of the sandbox.

The judge decides which folders a candidate may write to, and what it takes to run at all; how a
process gives everything else up is a matter for the plugin that registers a sandbox.
"""

from __future__ import annotations

import logging
import shutil
import sys
import threading
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Optional

from flashinfer_bench import env
from flashinfer_bench._providers import install_hint
from flashinfer_bench.bench.confinement import SandboxMethod as SandboxMethod
from flashinfer_bench.bench.confinement import pick_sandbox as pick_sandbox
from flashinfer_bench.compile.builder import content_digest, package_name
from flashinfer_bench.compile.cache import COMPLETE, MARKER, cache_folder
from flashinfer_bench.data.layout import FOLDERS
from flashinfer_bench.errors import CapabilityError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.bench.executors.base import Candidate, Confinement, Executor
    from flashinfer_bench.data import Definition, Solution
    from flashinfer_bench.plugins import Catalog

logger = logging.getLogger(__name__)

Level = Literal["off", "auto", "strict"]

CANDIDATES = "candidates"
"""Name of the folder in the cache with a folder for each solution that has run."""

_CONFINE_TIMEOUT_S = 60.0


class Sandbox:
    """Confines the candidates of a run; may be shared by threads.

    Parameters
    ----------
    level : str
        ``off``: does nothing. ``auto``: as far as this system allows, and says once what it does
        not offer. ``strict``: refuses candidates for which something of importance is missing.

    catalog : Catalog, optional
        Where sandboxes are registered; by default what is installed.
    dataset : Path, optional
        One of which solutions see nothing, so that they cannot hold the locks of its files.
    hidden : sequence of str
        Folders of which neither solutions nor compilers see anything.

    Raises
    ------
    ConfigError
        If an environment variable of the sandbox has a value that is not allowed.
    """

    def __init__(
        self,
        level: Level = "auto",
        catalog: Optional[Catalog] = None,
        *,
        dataset: Optional[Path] = None,
        hidden: Sequence[str] = (),
    ) -> None:
        self.level = level
        self._dataset = dataset and dataset.absolute()
        self._hidden = hidden
        self._method = None
        if level != "off":
            self._method = pick_sandbox(catalog, tell=partial(logger.warning, "%s"))
        self._told = False
        self._lent: set[str] = set()
        self._lock = threading.Lock()
        try:
            env.sandbox_memory_bytes(), env.sandbox_file_bytes(), env.sandbox_processes()
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def confine(
        self,
        candidate: Candidate,
        definition: Definition,
        solution: Solution,
        *,
        device: Optional[str] = None,
    ) -> Optional[Confinement]:
        """Confine a process that is about to load a solution.

        Parameters
        ----------
        candidate : Candidate
            The process, in which no code of a solution has run.
        definition, solution : Definition, Solution
            What it will load.
        device : str, optional
            What it works on, if that is known.

        Returns
        -------
        Confinement or None
            None if the level is ``off``.

        Raises
        ------
        CandidateError
            If the process does not answer.
        CapabilityError
            If the level is ``strict``, and something is missing.
        """
        if self.level == "off":
            return None
        folders = writable_folders(definition, solution)
        self._lent.update(folders[:1])
        hidden = [self._dataset / name for name in FOLDERS] if self._dataset is not None else []
        return self._confine(candidate, folders, device, [str(path) for path in hidden])

    def confine_compiler(self, candidate: Candidate) -> Optional[Confinement]:
        """Confine a process that compiles a solution, and runs no code of it.

        It may write to the cache, but each compiler that it starts only to the folder of its build.
        Otherwise as `confine`.
        """
        if self.level == "off":
            return None
        cache = env.cache_path()
        cache.mkdir(parents=True, exist_ok=True)
        return self._confine(candidate, [str(cache), *map(str, env.sandbox_writable())], None)

    def adopt(self, candidate: Candidate, device: str) -> None:
        """Do for a fresh process what can be done before it is known what it will load."""
        if self._method is not None:
            try:
                self._method.adopt(candidate.pid, device=device)
            except Exception as error:  # noqa: BLE001 - plugin boundary: it confines itself later
                logger.debug("a worker was not confined ahead: %r", error)

    def require(self, executor: Executor) -> None:
        """Try, if the level is ``strict``, whether processes of an executor can be confined.

        Raises
        ------
        CapabilityError
            If not.
        RunnerFatalError
            If no process can be started.
        """
        if self.level != "strict":
            return
        executor.start()
        with closing(executor.spawn()) as candidate:
            self._confine(candidate, [], executor.device)

    def tidy(self) -> None:
        """Remove what solutions left empty, folders and control groups, when they are gone."""
        if self._method is not None:
            try:
                self._method.tidy()
            except Exception as error:  # noqa: BLE001 - plugin boundary: the run is over
                logger.warning("what a sandbox left behind could not be removed: %r", error)
        while self._lent:
            folder = Path(self._lent.pop())
            with suppress(OSError):  # something is in there
                folder.rmdir()
                shutil.rmtree(folder.parent)

    def _confine(
        self,
        candidate: Candidate,
        writable: Sequence[str],
        device: Optional[str],
        hidden: Sequence[str] = (),
    ) -> Confinement:
        hidden = [*hidden, *self._hidden]
        done = candidate.confine(writable, hidden=hidden, timeout_s=_CONFINE_TIMEOUT_S)
        if self.level == "strict":
            self._require_all(done, device)
        with self._lock:
            told, self._told = self._told, self._told or not done.applied or bool(done.missing)
        if self._told and not told:
            logger.warning("solutions run %s", self._lack(done))
        return done

    def _lack(self, done: Confinement) -> str:
        if self._method is None:
            hint = install_hint("fib-sandbox-linux")
            return f"without a sandbox: none is installed for {sys.platform!r}; {hint}"
        if not done.missing:
            return "without a sandbox: this executor has none"
        reasons = "; ".join(f"{name} ({why})" for name, why in done.missing.items())
        return f"with only part of their sandbox; missing: {reasons}"

    def _require_all(self, done: Confinement, device: Optional[str]) -> None:
        if self._method is None:
            raise CapabilityError(
                f"solutions cannot be confined: no sandbox is installed for {sys.platform!r}",
                hint=f"use '--sandbox off', or {install_hint('fib-sandbox-linux')}",
            )
        needed = {**self._method.needed, **(self._method.needed_on_cpu if device == "cpu" else {})}
        lacking = []
        for what, names in needed.items():
            if not set(done.applied).intersection(names):
                why = (f"{one}: {done.missing.get(one, 'this executor has none')}" for one in names)
                lacking.append(f"{what} ({', '.join(why)})")
        if lacking:
            raise CapabilityError(
                f"solutions cannot be kept from {'; '.join(lacking)}",
                hint="'--sandbox auto' confines them as far as this system allows",
            )


def strictest(executor: Executor, catalog: Catalog, dataset: Optional[Path] = None) -> Level:
    """Return ``strict`` if processes of an executor can be confined so; else ``auto``, and warn."""
    sandbox = Sandbox("strict", catalog, dataset=dataset)
    try:
        sandbox.require(executor)
    except CapabilityError as error:
        logger.warning("solutions are confined only as far as possible: %s", error)
        return "auto"
    finally:
        sandbox.tidy()
    return "strict"


def writable_folders(definition: Definition, solution: Solution) -> list[str]:
    """Return the folders that a process which runs a solution may write to, besides its own.

    The first is the solution's alone, and is made if need be: what is compiled at its first call is
    found there by its next process, and by no other solution. The others are the user's choice. If
    it cannot be made there are none, and what is compiled ends with the process.
    """
    # Named like a build, and marked as one that is complete: so the cache is listed and pruned.
    name = package_name("", solution, content_digest(definition, solution))
    folder = cache_folder(CANDIDATES) / name
    try:
        (folder / "caches").mkdir(parents=True, exist_ok=True)
        (folder.parent / MARKER).touch()
        (folder / COMPLETE).touch()
    except OSError as error:
        logger.debug("%s: cannot be created: %s", folder, error)
        return []
    return [str(folder / "caches"), *map(str, env.sandbox_writable())]
