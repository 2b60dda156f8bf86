"""Datasets of the Hugging Face hub, as read-only folders in its cache.

``huggingface_hub`` keeps each revision of a dataset in a folder named ``snapshots/<commit>``. Files
in it never change, so a dataset is exactly that of the commit. JSON files are downloaded at once,
definitions and workloads first; tensor files are large and downloaded when they are read.
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
        """Parse ``REPO`` or ``REPO@REVISION``.

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
    """Download the JSON files of a dataset that are not in the cache.

    If the hub is unreachable, the files of an earlier download are used.

    Parameters
    ----------
    dataset : HubDataset or str
        The dataset; text has the form ``REPO`` or ``REPO@REVISION``.

    Returns
    -------
    Path
        Its folder. Do not write to it: revisions share files.

    Raises
    ------
    ConfigError
        If the name is invalid.
    CapabilityError
        If ``huggingface_hub`` is not installed.
    DatasetNotFoundError
        If there is no such dataset or revision, access is denied, or the hub is unreachable and
        the dataset is not in the cache.
    """
    one = HubDataset.parse(dataset) if isinstance(dataset, str) else dataset
    revision = one.revision
    for folders in ((layout.DEFINITIONS, layout.WORKLOADS), (layout.SOLUTIONS, layout.TRACES)):
        # "*" matches any number of folders.
        patterns = [f"{folder}/{suffix}" for folder in folders for suffix in ("*.json", "*.jsonl")]
        with _explaining(one) as library:
            found = library.snapshot_download(
                one.repo, repo_type="dataset", revision=revision, allow_patterns=patterns
            )
        revision = Path(found).name  # the commit, not the branch: it may move on meanwhile
    return Path(found)


def fetch_blob(root: Path, path: str) -> bool:
    """Download a tensor file of a dataset in the hub's cache.

    Parameters
    ----------
    root : Path
        Folder of a dataset.
    path : str
        Path of the file in the dataset, with ``/``.

    Returns
    -------
    bool
        Whether the file exists now. False if `root` is not a folder of the hub's cache.

    Raises
    ------
    BlobError
        If the dataset has no such file, or the download fails.
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
    """Return the dataset of a folder in the hub's cache; None for other folders."""
    repo_folder = root.parent.parent
    if root.parent.name != "snapshots" or not repo_folder.name.startswith(_FOLDER):
        return None
    return HubDataset(repo_folder.name.removeprefix(_FOLDER).replace("--", "/"), root.name)


@contextlib.contextmanager
def _explaining(dataset: HubDataset, path: Optional[str] = None) -> Iterator[Any]:
    """Yield the library, and replace its errors by short ones with hints."""
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise CapabilityError(
            "datasets of the hub require the package huggingface_hub, which is not installed",
            hint="pip install huggingface_hub, or download the dataset and give its folder",
        ) from error
    repo = f"the dataset {dataset.repo!r} of the hub"
    what = repo if path is None else f"{path!r} of {repo}"
    # The first error means that the cache has nothing, after the hub was found unreachable.
    offline = (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError)
    try:
        yield huggingface_hub
    except Exception as error:
        if isinstance(error, errors.RevisionNotFoundError):
            problem = f"{repo} has no revision {dataset.revision!r}"
            hint = "leave out the revision to use the default branch"
        elif isinstance(error, errors.GatedRepoError):
            problem = f"access to {repo} is restricted"
            hint = "request access on its page, then log in with: hf auth login"
        elif isinstance(error, errors.RepositoryNotFoundError):
            problem = f"{repo} does not exist, or is private"
            hint = "check the name; for private datasets log in with: hf auth login"
        elif isinstance(error, errors.RemoteEntryNotFoundError):
            problem, hint = f"{what} does not exist", "correct the path in the workload"
        elif isinstance(error, offline) or type(error).__name__ in _NO_CONNECTION:
            problem = f"{what} is not in the cache, and the hub is unreachable"
            hint = "check the network, HF_ENDPOINT and HF_HUB_OFFLINE, or give a local folder"
        else:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            problem, hint = f"cannot download {what}: {reason}", "try again later"
        raise DatasetNotFoundError(problem, hint=hint) from error
