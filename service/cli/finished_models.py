"""Finished models on this machine: where a worker left them, or downloaded into a small cache."""

import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from service.cli import checkpoint_model, download, whole_folder
from service.cli.client import Client, Json
from service.cli.exit_codes import UsageError
from service.cli.folder_names import folder_name
from service.contract import patterns
from service.contract.inference import BaseModelSource
from service.settings import Settings

_FOLDER: Final = "downloaded-models"
_CONFIGS: Final = ("config.json", "adapter_config.json")
_MOST_MODELS: Final = 5
_IN_USE_SECONDS: Final = 600.0
"""A model that was used so recently may still be loading."""


@dataclass(frozen=True)
class Found:
    folder: Path
    base_model: BaseModelSource | None
    """If it is an adapter."""
    cache_dir: Path


def find(client: Client, job: Json) -> Found:
    """UsageError if the job has no finished model."""
    home = Settings().home
    folder = _local(job) or _downloaded(client, job, home / "cache" / _FOLDER)
    base = None
    if (folder / "adapter_config.json").is_file():
        base = _base_model(client, job, home)
    return Found(folder, base, home / "cache")


def _local(job: Json) -> Path | None:
    """The path contains the job's id, so it is no other folder by chance."""
    path = (job["result"] or {}).get("model_path")
    if path is None or not re.match(patterns.JOB_ID, job["id"]) or job["id"] not in path:
        return None
    try:
        found = any((Path(path) / name).is_file() for name in _CONFIGS)
    except OSError:  # the folder of another user
        return None
    return Path(path) if found else None


def _downloaded(client: Client, job: Json, cache: Path) -> Path:
    files = [
        artifact
        for artifact in download.artifacts(client, job["id"])
        if artifact["name"].startswith(checkpoint_model.MODEL)
    ]
    weights = (job["result"] or {}).get("weights_sha256")
    if not files or weights is None:
        raise UsageError(
            f"{job['id']} has no finished model: it is {job['state']}"
            + ("" if job["spec"].get("mode", "train") == "train" else " and does not train")
        )
    target = cache / folder_name(f"{job['id']}-{weights[:16]}", "model")
    if not target.is_dir():
        _make_room(cache)
        with whole_folder.writing(target, job["id"], force=False) as folder:
            download.fetch(client, job["id"], files, folder)
    (target / whole_folder.MANIFEST).touch()  # when it was last used
    return target / checkpoint_model.MODEL


def _make_room(cache: Path) -> None:
    """For one more model: those that were not used for longest go."""
    found = sorted(cache.glob(f"job-*/{whole_folder.MANIFEST}"), key=lambda f: f.stat().st_mtime)
    for manifest in found[: max(0, len(found) - _MOST_MODELS + 1)]:
        if time.time() - manifest.stat().st_mtime > _IN_USE_SECONDS:
            shutil.rmtree(manifest.parent, ignore_errors=True)


def _base_model(client: Client, job: Json, home: Path) -> BaseModelSource:
    """Of an adapter: the model that its job started from."""
    given = job["spec"]["model"]
    if given.get("job") is None:
        revision = (job["result"] or {}).get("model_revision")
        return BaseModelSource(name_or_path=given["name_or_path"], revision=revision)
    if given.get("checkpoint") is not None:
        raise UsageError(
            f"the adapter of {job['id']} belongs to a checkpoint of {given['job']}: `finetune try` "
            "needs a finished model as its base. Train with `peft.merge: true` to try it"
        )
    other = client.get(f"/v1/jobs/{given['job']}")
    folder = _local(other) or _downloaded(client, other, home / "cache" / _FOLDER)
    return BaseModelSource(name_or_path=str(folder), revision=None)
