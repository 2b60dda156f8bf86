"""Datasets of the Hugging Face hub, as read-only folders in its own cache.

``huggingface_hub`` keeps each revision of a dataset in a folder named ``snapshots/<commit>``. Files
in it never change, so a dataset is exactly what its commit says. JSON comes at once, definitions
and workloads first; tensor files are large and come one by one, when somebody reads them.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from flashinfer_bench.data import layout
from flashinfer_bench.errors import (
    BlobError,
    CapabilityError,
    ConfigError,
    DatasetNotFoundError,
    FibError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_REVISION = re.compile(r"[\w./+-]+", re.ASCII)
_FOLDER = "datasets--"
_NO_CONNECTION = ("ConnectError", "ConnectTimeout")


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


def download_dataset(dataset: Union[HubDataset, str]) -> Path:
    """Fetch the JSON of a dataset, as far as it is not there yet.

    Where the hub cannot be reached, what an earlier call has fetched is used.

    Parameters
    ----------
    dataset : HubDataset or str
        Which one: ``REPO`` or ``REPO@REVISION``.

    Returns
    -------
    Path
        Its folder. It is to be read only: all datasets of one content share their files.

    Raises
    ------
    ConfigError
        If that is no name of a dataset.
    CapabilityError
        If ``huggingface_hub`` is not installed.
    DatasetNotFoundError
        If there is no such dataset or revision, it may not be read, or the hub cannot be reached
        and nothing of it is here.
    """
    one = HubDataset.parse(dataset) if isinstance(dataset, str) else dataset
    revision = one.revision
    for folders in ((layout.DEFINITIONS, layout.WORKLOADS), (layout.SOLUTIONS, layout.TRACES)):
        # "*" stands for any number of folders, too.
        patterns = [f"{folder}/{suffix}" for folder in folders for suffix in ("*.json", "*.jsonl")]
        with _explaining(one) as library:
            found = library.snapshot_download(
                one.repo, repo_type="dataset", revision=revision, allow_patterns=patterns
            )
        revision = Path(found).name  # the commit, not the branch: it may move on meanwhile
    return Path(found)


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
    if source is None or (root / path).exists():
        return source is not None
    name = Path(path).as_posix()
    try:
        with _explaining(source, name) as library:
            library.hf_hub_download(
                source.repo,
                name,
                repo_type="dataset",
                revision=source.revision,
                cache_dir=root.parent.parent.parent,
            )
    except FibError as error:
        raise BlobError(error.message, path=root / path, hint=error.hint) from error
    return True


def dataset_of(root: Path) -> Optional[HubDataset]:
    """Return which dataset a folder of the hub's cache is; None if it is another folder."""
    repo_folder = root.parent.parent
    if root.parent.name != "snapshots" or not repo_folder.name.startswith(_FOLDER):
        return None
    return HubDataset(repo_folder.name.removeprefix(_FOLDER).replace("--", "/"), root.name)


@contextlib.contextmanager
def _explaining(dataset: HubDataset, path: Optional[str] = None) -> Iterator[Any]:
    """Give the library, and say in our words what it says in a page of its own."""
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise CapabilityError(
            "datasets of the hub need the package huggingface_hub, which is not installed",
            hint="pip install huggingface_hub, or download the dataset and name its folder",
        ) from error
    repo = f"the dataset {dataset.repo!r} of the hub"
    what = repo if path is None else f"{path!r} of {repo}"
    # The first says that nothing is in the cache: somebody asked before whether the hub answers.
    offline = (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError)
    try:
        yield huggingface_hub
    except Exception as error:
        if isinstance(error, errors.RevisionNotFoundError):
            problem = f"{repo} has no revision {dataset.revision!r}"
            hint = "leave the revision away to use the default branch"
        elif isinstance(error, errors.GatedRepoError):
            problem = f"{repo} may be read only by those who were given access"
            hint = "ask for access on its page, then log in with: hf auth login"
        elif isinstance(error, errors.RepositoryNotFoundError):
            problem = f"{repo} does not exist, or is private"
            hint = "check its name; for a private one log in with: hf auth login"
        elif isinstance(error, errors.RemoteEntryNotFoundError):
            problem, hint = f"{what} does not exist", "the workload names no file"
        elif isinstance(error, offline) or type(error).__name__ in _NO_CONNECTION:
            problem = f"{what} is not in the cache, and the hub cannot be reached"
            hint = "check the network, HF_ENDPOINT and HF_HUB_OFFLINE, or name a local folder"
        else:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            problem, hint = f"{what} cannot be fetched: {reason}", "try again later"
        raise DatasetNotFoundError(problem, hint=hint) from error
