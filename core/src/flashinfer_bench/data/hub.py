"""Datasets of the Hugging Face hub, as read-only folders in its own cache.

``huggingface_hub`` keeps each revision of a dataset in a folder named ``snapshots/<commit>``. Files
in it never change, so a dataset is exactly what its commit says. JSON comes at once, definitions
and workloads first; tensor files are large and come one by one, when somebody reads them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional

from flashinfer_bench.data import layout
from flashinfer_bench.data.blobs import resolve_blob
from flashinfer_bench.errors import (
    BlobError,
    CapabilityError,
    ConfigError,
    DatasetNotFoundError,
    FibError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_FIRST = (layout.DEFINITIONS, layout.WORKLOADS)
_THEN = (layout.SOLUTIONS, layout.TRACES)
_SUFFIXES = ("*.json", "*.jsonl")
_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_REVISION = re.compile(r"[\w./+-]+", re.ASCII)
_FOLDER = "datasets--"
_EXTRA = "flashinfer-bench-core[hub]"


class HubDataset(NamedTuple):
    """A dataset of the hub.

    Attributes
    ----------
    repo : str
        ``name`` or ``organisation/name``.
    revision : str, optional
        Branch, tag or commit; None for the default branch.
    """

    repo: str
    revision: Optional[str] = None

    @classmethod
    def parse(cls, text: str) -> HubDataset:
        """Read ``REPO`` or ``REPO@REVISION``.

        Raises
        ------
        ConfigError
            If it is neither.
        """
        repo, at, revision = text.partition("@")
        parts = [repo, *revision.split("/")]
        sound = _NAME.fullmatch(repo) and (not at or _REVISION.fullmatch(revision))
        if not sound or any(part in (".", "..") for part in "/".join(parts).split("/")):
            raise ConfigError(
                f"{text!r} is not a dataset of the hub",
                hint="write ORGANISATION/NAME or ORGANISATION/NAME@REVISION, where the revision is "
                "a branch, a tag or a commit",
            )
        return cls(repo, revision if at else None)

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"


def fetch(text: str) -> Path:
    """Return the folder of the dataset that ``REPO`` or ``REPO@REVISION`` names; fetch it first."""
    return download_dataset(HubDataset.parse(text))


def download_dataset(dataset: HubDataset) -> Path:
    """Fetch the JSON of a dataset, as far as it is not there yet.

    Where the hub cannot be reached, what an earlier call has fetched is used.

    Parameters
    ----------
    dataset : HubDataset
        Which one.

    Returns
    -------
    Path
        Its folder. It is to be read only: all datasets of one content share their files.

    Raises
    ------
    CapabilityError
        If ``huggingface_hub`` is not installed.
    DatasetNotFoundError
        If there is no such dataset or revision, it may not be read, or the hub cannot be reached
        and nothing of it is here.
    """
    _require_library()
    folder = _snapshot(dataset, dataset.revision, _FIRST)
    # The commit, not the branch: it may move on meanwhile.
    return _snapshot(dataset, folder.name, _THEN)


def fetch_blob(root: Path, path: str) -> bool:
    """Fetch a tensor file of a dataset that `download_dataset` has made, if it is one.

    Parameters
    ----------
    root : Path
        Folder of a dataset.
    path : str
        The file, relative to it, with ``/``.

    Returns
    -------
    bool
        Whether it is there now. False if `root` is no folder of the hub's cache.

    Raises
    ------
    BlobError
        If the dataset has no such file, or it cannot be fetched.
    """
    source = dataset_of(root)
    if source is None:
        return False
    if (root / path).exists():
        return True
    try:
        _require_library()
        _fetch_file(root, source, Path(path).as_posix())
    except FibError as error:
        raise BlobError(error.message, path=root / path, hint=error.hint) from error
    return True


def present_blob(root: Path, path: str) -> Path:
    """Return a tensor file that a workload names; one of the hub is fetched first.

    Parameters
    ----------
    root : Path
        Folder of the dataset.
    path : str
        As in the workload: relative to `root`.

    Returns
    -------
    Path
        Its real place. It exists if the dataset is one of the hub; otherwise it need not.

    Raises
    ------
    UnsafePathError
        If it leads out of the dataset.
    BlobError
        If it is to be fetched, and cannot be.
    """
    found = resolve_blob(root, path)
    if found.exists() or not fetch_blob(root, path):
        return found
    return resolve_blob(root, path)


def dataset_of(root: Path) -> Optional[HubDataset]:
    """Return which dataset a folder of the hub's cache is; None if it is another folder."""
    repo_folder = root.parent.parent
    if root.parent.name != "snapshots" or not repo_folder.name.startswith(_FOLDER):
        return None
    return HubDataset(repo_folder.name.removeprefix(_FOLDER).replace("--", "/"), root.name)


def _require_library() -> None:
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise CapabilityError(
            "datasets of the hub need the package huggingface_hub, which is not installed",
            hint=f"pip install '{_EXTRA}', or download the dataset and name its folder",
        ) from error


def _snapshot(dataset: HubDataset, revision: Optional[str], folders: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download

    # "*" stands for any number of folders, too.
    patterns = [f"{folder}/{suffix}" for folder in folders for suffix in _SUFFIXES]
    try:
        found = snapshot_download(
            dataset.repo, repo_type="dataset", revision=revision, allow_patterns=patterns
        )
    except Exception as error:
        raise _explained(error, dataset) from error
    return Path(found)


def _fetch_file(root: Path, source: HubDataset, path: str) -> None:
    from huggingface_hub import hf_hub_download

    try:
        hf_hub_download(
            source.repo,
            path,
            repo_type="dataset",
            revision=source.revision,
            cache_dir=root.parent.parent.parent,
        )
    except Exception as error:
        raise _explained(error, source, path) from error


def _explained(error: Exception, dataset: HubDataset, path: Optional[str] = None) -> FibError:
    """Say in our words what the library says in a page of its own."""
    from huggingface_hub import errors

    repo = f"the dataset {dataset.repo!r} of the hub"
    what = repo if path is None else f"{path!r} of {repo}"
    if isinstance(error, errors.RevisionNotFoundError):
        return DatasetNotFoundError(
            f"{repo} has no revision {dataset.revision!r}",
            hint="leave the revision away to use the default branch",
        )
    if isinstance(error, errors.GatedRepoError):
        return DatasetNotFoundError(
            f"{repo} may be read only by those who were given access",
            hint="ask for access on its page, then log in with: hf auth login",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return DatasetNotFoundError(
            f"{repo} does not exist, or is private",
            hint="check its name; for a private one log in with: hf auth login",
        )
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return DatasetNotFoundError(f"{what} does not exist", hint="the workload names no file")
    if _is_offline(error):
        return DatasetNotFoundError(
            f"{what} is not in the cache, and the hub cannot be reached",
            hint="check the network, HF_ENDPOINT and HF_HUB_OFFLINE, or name a folder with --local",
        )
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return DatasetNotFoundError(f"{what} cannot be fetched: {reason}", hint="try again later")


def _is_offline(error: Exception) -> bool:
    from huggingface_hub import errors

    # The first says that nothing is in the cache: somebody asked before whether the hub answers.
    offline = (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError)
    return isinstance(error, offline) or type(error).__name__ in ("ConnectError", "ConnectTimeout")
