"""A job's repository on the Hub: the files to push, and one commit at a time.

Used by `prepare`, `publish` and the pushes during training, with the token in HF_TOKEN.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils.tqdm import disable_progress_bars

from service.contract.failures import FailureCode, StageError
from service.contract.spec.hub import HubSpec
from service.contract.stage.stages import StageRequest
from worker.publishing import hub_access

Files = Mapping[str, Path]
"""Name in the repository → file."""

_MAIN: Final = "main"
_LAST: Final = "last-checkpoint"
# A model's description → its weights.
_WEIGHTS: Final = {
    "config.json": "model.safetensors",
    "adapter_config.json": "adapter_model.safetensors",
}
_CARD: Final = "README.md"


def settings_dir(attempt_dir: Path) -> Path:
    """Where `train` writes the model without its weights, for pushes of its checkpoints."""
    return attempt_dir / "hub"


def newest_settings(workspace: Path) -> Path:
    """Those of the newest attempt that has written them."""
    found = workspace.glob(f"attempts/*/{settings_dir(Path()).name}")
    return max(found, key=lambda folder: int(folder.parent.name))


def model_files(settings: Path, checkpoint: Path) -> Files:
    """A checkpoint's weights and the model's settings: the files that `from_pretrained` loads.

    Raises StageError(hub_rejected) if the checkpoint has no such weights.
    """
    named = {name: path for name, path in _inside(settings).items() if name != _CARD}
    weights = {
        name: checkpoint / name
        for description, name in _WEIGHTS.items()
        if description in named and (checkpoint / name).is_file()
    }
    if not weights:
        message = f"The checkpoint of step {checkpoint.name} has no weights that can be loaded."
        raise StageError(FailureCode.HUB_REJECTED, message)
    return named | weights


def checkpoint_files(checkpoints: Sequence[Path], target: HubSpec) -> Files:
    """Whole checkpoints, in the folders that the Trainer's strategies use."""
    return {
        f"{_folder(checkpoint, target)}/{name}": path
        for checkpoint in checkpoints
        if target.strategy in ("checkpoint", "all_checkpoints")
        for name, path in _inside(checkpoint).items()
    }


def title_of(checkpoint: Path) -> str:
    """Of the commit with its model."""
    return f"Training in progress, step {checkpoint.name}"


def _inside(folder: Path) -> Files:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in files}


def _folder(checkpoint: Path, target: HubSpec) -> str:
    return _LAST if target.strategy == "checkpoint" else f"checkpoint-{checkpoint.name}"


def _is_of_last(name: str) -> bool:
    return name.startswith(f"{_LAST}/")


class Repository:
    """The branch that a job pushes to. Raises the client's errors."""

    def __init__(self, request: StageRequest) -> None:
        """The request must have a target."""
        disable_progress_bars()
        target = request.hub_target
        assert target is not None
        self._token = hub_access.name_of_token(request.spec)
        self._api = HfApi(request.hub_endpoint, _token(), library_name="finetune-service")
        self._target = target.model_copy(
            update={"model_id": hub_access.full_model_id(self._api, target.model_id)}
        )

    @property
    def model_id(self) -> str:
        """With its namespace."""
        return self._target.model_id

    def ensure_exists(self) -> str:
        """Create the repository and the branch if needed, and check write access; its URL.

        Raises StageError(hub_forbidden or hub_unauthorized) without write access.
        """
        target = self._target
        with hub_access.refusals_explained(self._api, self._token, target.model_id):
            url = self._api.create_repo(target.model_id, private=target.private, exist_ok=True)
            hub_access.require_write(self._api, target.model_id)
            if target.revision != _MAIN:
                self._api.create_branch(target.model_id, branch=target.revision, exist_ok=True)
        return str(url)

    def titles(self, job_id: str) -> set[str]:
        """Of the job's commits on the branch."""
        name, revision = self._target.model_id, self._target.revision
        commits = self._api.list_repo_commits(name, revision=revision)
        return {commit.title for commit in commits if job_id in commit.message}

    def head(self) -> str:
        """The branch's newest commit."""
        info = self._api.model_info(self._target.model_id, revision=self._target.revision)
        return str(info.sha)

    def change(self, files: Files, workspace: Path) -> "Change":
        """Add `files`, and delete files of the job's earlier pushes that `files` lacks."""
        additions = [CommitOperationAdd(name, path) for name, path in files.items()]
        return Change(self._api, self._target, additions, self._superseded(files, workspace))

    def checkpoint_change(self, checkpoint: Path, settings: Path, workspace: Path) -> "Change":
        """The model of a checkpoint, and what else of it `hub.strategy` pushes."""
        model = model_files(settings, checkpoint)
        return self.change({**model, **checkpoint_files([checkpoint], self._target)}, workspace)

    def _superseded(self, files: Files, workspace: Path) -> list[CommitOperationDelete]:
        target = self._target
        if not target.pushes_while_training:
            return []
        settings = workspace.glob(f"attempts/*/{settings_dir(Path()).name}")
        pushed = {name for folder in settings for name in _inside(folder)} - {_CARD}
        pushed |= {weights for name, weights in _WEIGHTS.items() if name in pushed}
        there = self._api.list_repo_files(target.model_id, revision=target.revision)
        if any(_is_of_last(name) for name in files):
            pushed |= set(filter(_is_of_last, there))
        return [CommitOperationDelete(name) for name in there if name in pushed - files.keys()]


@dataclass(frozen=True)
class Change:
    """One commit. The client skips files that the Hub has already, and makes no commit if none is
    left: so a retry finds its own commit again."""

    api: HfApi
    target: HubSpec
    additions: list[CommitOperationAdd]
    deletions: list[CommitOperationDelete]

    def upload(self) -> None:
        """Upload the large files; they are invisible before the commit."""
        self.api.preupload_lfs_files(
            self.target.model_id, self.additions, revision=self.target.revision
        )

    def commit(self, title: str, job_id: str, parent: str | None = None) -> CommitInfo:
        """With `parent`, only if that is still the newest commit; otherwise the Hub returns 412.

        The commit's description names the job: several jobs may push to a repository.
        """
        return self.api.create_commit(
            self.target.model_id,
            [*self.additions, *self.deletions],
            commit_message=title,
            commit_description=job_id,
            revision=self.target.revision,
            parent_commit=parent,
        )


@contextmanager
def refusals_explained() -> Iterator[None]:
    """Raise StageError(hub_rejected) for names that the client refuses."""
    try:
        yield
    except HFValidationError as error:
        raise StageError(FailureCode.HUB_REJECTED, str(error)) from error


def _token() -> str:
    token = os.environ.get("HF_TOKEN")
    if not token:
        raise StageError(FailureCode.HUB_UNAUTHORIZED, "No Hub token is set.")
    return token
