"""Data sets of the Hub, each at a fixed commit."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import datasets
from datasets.exceptions import DatasetGenerationError, DatasetsError
from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from service.contract.failures import FailureCode, StageError
from service.contract.spec.dataset import HubDataset
from worker import failures
from worker.data.table import Row, Table


class HubData:
    """Resolves the commit at once; downloads when the first table is read."""

    def __init__(self, spec: HubDataset, slices: Mapping[str, str], cache_dir: Path) -> None:
        """`slices`: split → the part of the data set that it is, such as `train[:10%]`."""
        self._spec = spec
        self._slices = slices
        self._cache_dir = cache_dir / "datasets"
        self._builder: Any = None
        self._rows: dict[str, int] = {}
        try:
            info = HfApi().dataset_info(spec.name, revision=spec.revision)
            _pass_gate(info)
        except (HfHubHTTPError, HFValidationError) as error:
            _refuse(spec, error)
        if not info.sha:
            message = f"The Hub returned no commit for the data set {spec.name!r}"
            raise StageError(FailureCode.HUB_UNAVAILABLE, message)
        self._commit: str = info.sha
        self.revision: str | None = self._commit
        self._id = info.id  # the full name where `name` is an old short one

    def splits(self) -> tuple[str, ...]:
        return tuple(self._slices)

    def fingerprint(self) -> Any:
        return {
            "hub": [self._id, self._commit],
            "config": self._spec.config,
            "splits": self._slices,
        }

    def names(self, split: str) -> list[str]:
        return [f"{self._spec.name}, split {self._slices[split]}"]

    def rows(self, split: str) -> int | None:
        return self._rows.get(split)

    def tables(self, split: str) -> Iterator[Table]:
        instruction = self._slices[split]
        prepared = self._prepared()
        try:
            dataset = prepared.as_dataset(split=instruction)
        except (ValueError, AssertionError) as error:  # an unknown split, a bad slice
            nothing = "corresponds to no data" in str(error)  # a slice that selects no row
            code = FailureCode.EMPTY_DATASET if nothing else FailureCode.DATASET_NOT_FOUND
            problem = f"no split {instruction!r}: {failures.describe(error)}"
            raise StageError(code, f"{self._named()} has {problem}") from error

        (name,) = self.names(split)
        self._rows[split] = len(dataset)

        def rows(wanted: Collection[str]) -> Iterator[tuple[str, Row]]:
            for number, row in enumerate(dataset.select_columns(list(wanted)), start=1):
                yield f"{name}, row {number}", row

        yield Table(columns=tuple(dataset.column_names), rows=rows, name=name)

    def _prepared(self) -> Any:
        if self._builder is None:
            try:
                self._builder = self._download()
            except (HfHubHTTPError, DatasetsError, ValueError, RuntimeError) as error:
                _refuse(self._spec, error)
        return self._builder

    def _download(self) -> Any:
        builder = datasets.load_dataset_builder(
            f"hf://datasets/{self._id}",  # never a local folder of that name
            self._spec.config,
            revision=self._commit,
            cache_dir=str(self._cache_dir),
        )
        if builder.hash != self._commit:
            # If the Hub is unreachable, the library silently uses any older copy.
            message = f"{self._named()} could not be loaded from the Hub"
            raise StageError(FailureCode.NETWORK, message)
        builder.download_and_prepare()
        return builder

    def _named(self) -> str:
        return f"The data set {self._spec.name!r} at commit {self._commit[:12]}"


def _pass_gate(info: Any) -> None:
    """GatedRepoError without access. The lookup is open to all, and `datasets` hides the cause."""
    if info.gated and info.siblings:
        name = info.siblings[0].rfilename
        get_hf_file_metadata(hf_hub_url(info.id, name, repo_type="dataset", revision=info.sha))


def _refuse(spec: HubDataset, error: Exception) -> NoReturn:
    """Raise what a failed lookup or download of the data set means for the user."""
    name, revision = spec.name, spec.revision or "main"
    links = [link for link in (error, error.__cause__) if link is not None]
    # Whether the machine or the network is to blame, not the data set.
    is_outside = failures.from_exception(error).code is not FailureCode.INTERNAL
    status = getattr(getattr(error, "response", None), "status_code", None)
    if any(isinstance(link, GatedRepoError) for link in links) or status == 403:
        code = FailureCode.DATASET_ACCESS_DENIED
        message = f"The data set {name!r} is gated or private and the Hub token has no access"
    elif any(isinstance(link, RevisionNotFoundError) for link in links):
        code = FailureCode.DATASET_NOT_FOUND
        message = f"The data set {name!r} has no revision {revision!r}"
    elif any(isinstance(link, RepositoryNotFoundError | HFValidationError) for link in links):
        code = FailureCode.DATASET_NOT_FOUND
        message = f"The data set {name!r} does not exist on the Hub, or is private without access"
    elif isinstance(error, DatasetGenerationError):
        cause = error.__cause__ or error
        if is_outside:
            raise error
        code = FailureCode.UNREADABLE_ROW
        message = f"The data set {name!r} has rows that do not fit: {failures.describe(cause)}"
    elif isinstance(error, HfHubHTTPError) or is_outside:
        raise error
    else:
        code = FailureCode.DATASET_NOT_FOUND
        message = f"The data set {name!r} cannot be loaded: {failures.describe(error)}"
    raise StageError(code, message, dataset=name, revision=revision) from error
