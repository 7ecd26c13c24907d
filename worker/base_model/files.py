"""Finding the base model's files: in a Hub repository at a commit, or in an allowed folder."""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from service.contract.failures import FailureCode, StageError
from service.contract.fields.paths import PathNotAllowedError, resolve_under_roots
from service.contract.stage.stages import BaseJob
from worker.base_model import other_weights
from worker.base_model.safe_copy import WEIGHTS, is_followed, is_setting
from worker.publishing import hub_repository

_ADAPTER: Final = "adapter_config.json"
_WHOLE: Final = "model.safetensors"


@dataclass(frozen=True)
class ModelSource:
    """A repository or folder whose files are known, but on the Hub not yet downloaded."""

    name: str
    commit: str | None
    """None for a folder."""
    files: tuple[str, ...]
    fetch: Callable[[Iterable[str]], Path]
    """Downloads the named files if needed, and returns their folder."""
    links: tuple[str, ...] = ()
    """Files of the folder that are not read, because they are links that leave it."""

    def settings(self) -> list[str]:
        return [name for name in self.files if is_setting(name)]

    def weights(self) -> list[str]:
        """Safetensors that `from_pretrained` would load; StageError if there are none."""
        found = [name for name in self.files if WEIGHTS.fullmatch(name)]
        if found:
            return [_WHOLE] if _WHOLE in found else found
        if _ADAPTER in self.files:
            raise StageError(
                FailureCode.MODEL_NOT_FOUND,
                f"{self.name!r} holds a peft adapter without its base model: merge the two with "
                "PeftModel's merge_and_unload(), or train with `peft.merge: true`, and give the "
                "merged model",
            )
        other_weights.refuse(self.name, self.files, is_on_hub=self.commit is not None)
        linked = ", ".join(name for name in self.links if WEIGHTS.fullmatch(name))
        why = f". Links are not followed: put the file itself in place of {linked}"
        raise StageError(
            FailureCode.MODEL_NOT_FOUND,
            f"{self.name!r} holds no weights: neither {_WHOLE} nor shards of it"
            + (why if linked else ""),
        )


def locate(
    name: str, revision: str | None, *, roots: list[Path], setting: str, cache_dir: Path
) -> ModelSource:
    """Look `name` up: an absolute path under `roots`, or a Hub id. StageError if it is not found.

    `setting` is the field of the spec that contains the name.
    """
    if name.startswith(("/", ".", "~")) or "\x00" in name:
        return _folder(name, roots)
    try:
        info = HfApi().model_info(name, revision=revision)
    except (HfHubHTTPError, HFValidationError) as error:
        raise _refusal(name, revision, setting, error) from error
    files = tuple(sibling.rfilename for sibling in info.siblings or ())

    def fetch(wanted: Iterable[str]) -> Path:
        return _download(name, revision, str(info.sha), list(wanted), setting, cache_dir)

    return ModelSource(name, info.sha, files, fetch)


def of_job(base: BaseJob, own_folder: Path) -> ModelSource:
    """The finished model of another job; or the weights of its checkpoint, copied into `own_folder`
    together with its training's settings. StageError(model_not_found) if they were deleted."""
    name = base.job if base.step is None else f"{base.job} (step {base.step})"
    files = _inside(base.folder)
    if base.step is not None:
        settings = _settings_of(base, name)
        files = {file: path for file, path in files.items() if WEIGHTS.fullmatch(file)}
        files |= {file: path for file, path in _inside(settings).items() if file not in files}
    if not files:
        raise StageError(FailureCode.MODEL_NOT_FOUND, f"The files of {name} no longer exist")

    def fetch(_wanted: Iterable[str]) -> Path:
        return base.folder if base.step is None else own_files(files, own_folder)

    return ModelSource(name, base.revision, tuple(files), fetch)


def _settings_of(base: BaseJob, name: str) -> Path:
    """The folder with the configuration and the tokenizer that belong to a checkpoint."""
    settings = hub_repository.settings_dir(base.folder.parents[1])
    for folder in (settings, base.finished):
        if folder is not None and (folder / "config.json").is_file():
            return folder
    message = f"{name} was written by a release that did not save a configuration with checkpoints"
    raise StageError(FailureCode.MODEL_NOT_FOUND, message)


def _inside(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        return {}
    return {path.name: path for path in sorted(folder.iterdir()) if is_followed(path)}


def own_files(files: Mapping[str, Path], target: Path) -> Path:
    """Give this job files of its own, which stay when the other job's checkpoint is deleted.

    In the sandbox they are copies: it lets no stage link a file that it may only read into a folder
    that it may write, because the file could then be written by its new name. The supervisor makes
    no links either, for the same reason. Without a sandbox they are hard links, where possible.
    """
    target.mkdir(parents=True, exist_ok=True)
    for name, path in files.items():
        if not (target / name).exists():
            try:
                os.link(path, target / name)
            except OSError:
                shutil.copy2(path, target / name)
    return target


def _folder(name: str, roots: list[Path]) -> ModelSource:
    try:
        folder = resolve_under_roots(name, roots, "FINETUNE_MODEL_ROOTS")
    except PathNotAllowedError as error:
        raise StageError(FailureCode.MODEL_NOT_FOUND, f"The model {error}") from error
    try:
        if not folder.is_dir():
            raise StageError(FailureCode.MODEL_NOT_FOUND, f"{name!r} is not a folder")
        listed = sorted(folder.iterdir())
        inside = [path for path in listed if is_followed(path)]
    except PermissionError as error:
        raise _unreadable(name, "its folder") from error
    closed = sorted(path.name for path in inside if not os.access(path, os.R_OK))
    if closed:
        raise _unreadable(name, ", ".join(closed))
    files = tuple(path.name for path in inside)
    links = tuple(path.name for path in listed if path.is_symlink() and path not in inside)
    return ModelSource(name, None, files, lambda _wanted: folder, links)


def _unreadable(name: str, what: str) -> StageError:
    message = f"The worker's user may not read {what} of the model {name!r}"
    return StageError(FailureCode.MODEL_ACCESS_DENIED, message, name=name)


def _download(
    name: str, revision: str | None, commit: str, files: list[str], setting: str, cache_dir: Path
) -> Path:
    try:
        folder = snapshot_download(
            name, revision=commit, allow_patterns=files, cache_dir=cache_dir / "hub"
        )
    except HfHubHTTPError as error:
        raise _refusal(name, revision, setting, error) from error
    return Path(folder)


def _refusal(name: str, revision: str | None, setting: str, error: Exception) -> Exception:
    """What a failed lookup means for the user; the error itself if it is not about the name."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    unknown = isinstance(error, RepositoryNotFoundError | HFValidationError)
    # A mirror's plain 404 lacks the header by which huggingface_hub knows what is missing.
    unknown = unknown or (status == 404 and type(error) is HfHubHTTPError)
    code = FailureCode.MODEL_NOT_FOUND
    if isinstance(error, GatedRepoError) or (status == 403 and not unknown):
        code = FailureCode.MODEL_ACCESS_DENIED
        message = f"{name!r} is gated or private and the Hub token has no access"
    elif isinstance(error, RevisionNotFoundError):
        message = f"{name!r} has no revision {revision!r}"
    elif unknown:
        message = f"{name!r} does not exist on the Hub, or is private without access"
    else:
        return error
    return StageError(code, f"{message} (`{setting}`)", name=name, revision=revision)
