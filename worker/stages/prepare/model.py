"""The base model in `prepare`: found, downloaded, and copied after a check."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from service.contract.stage.events import Notice
from service.contract.stage.stages import BaseCard, StageRequest
from worker.base_model import checks, from_scratch, safe_copy
from worker.base_model import files as base_model_files
from worker.base_model.files import ModelSource
from worker.base_model.safe_copy import Vetting
from worker.publishing import base_model_card
from worker.tasks.base import Task


@dataclass(frozen=True)
class Origins:
    """Without model and config the model is created from scratch."""

    model: ModelSource | None
    config: ModelSource | None
    tokenizer: ModelSource


@dataclass(frozen=True)
class Model:
    """The base model on local disk, checked; the weights are not loaded."""

    folder: Path
    tokenizer_folder: Path
    revision: str | None
    config: Any
    tokenizer: Any
    card: BaseCard | None = None


def locate_model(request: StageRequest) -> Origins:
    """Look up the repositories or folders; `model.revision` is that of the model alone.

    A job that is prepared again uses the same commit as before.
    """
    spec = request.spec.model
    before = None if request.prepared is None else request.prepared.model_revision

    def locate(name: str, revision: str | None, setting: str) -> ModelSource:
        return base_model_files.locate(
            name,
            revision,
            roots=request.model_roots,
            setting=setting,
            cache_dir=request.project_cache,
        )

    tokenizer = None
    if spec.tokenizer_name is not None:
        tokenizer = locate(spec.tokenizer_name, None, "model.tokenizer_name")
    if spec.config is not None:
        assert tokenizer is not None, "the spec guarantees it"
        return Origins(None, None, tokenizer)
    if request.base_job is not None:
        model = base_model_files.of_job(request.base_job, request.attempt_dir / "model_of_job")
    else:
        assert spec.name_or_path is not None, "the spec guarantees it"
        model = locate(spec.name_or_path, before or spec.revision, "model.name_or_path")
    config = model
    if spec.config_name is not None:
        config = locate(spec.config_name, None, "model.config_name")
    return Origins(model, config, tokenizer or model)


def fetch_model(
    request: StageRequest,
    origins: Origins,
    task: Task,
    notice: Callable[[Notice], None],
    *,
    with_weights: bool = True,
) -> Model:
    """Download the small files and check them before the weights; the job gets vetted copies."""
    own_folder = request.attempt_dir / "base_model"
    weights = origins.model.weights() if origins.model is not None else []
    shares_folder = origins.tokenizer is origins.model is origins.config
    tokenizer_folder = own_folder if shares_folder else request.attempt_dir / "tokenizer"
    copy_settings = partial(_copy_settings, home=request.home, notice=notice)
    copy_settings(origins.tokenizer, tokenizer_folder)

    def load_tokenizer() -> Any:
        return checks.load_tokenizer(
            tokenizer_folder, origins.tokenizer.name, task, request.spec.task
        )

    if request.spec.model.config is not None:
        tokenizer = load_tokenizer()
        config = from_scratch.make_config(request.spec.model.config, tokenizer, own_folder)
        return Model(own_folder, tokenizer_folder, None, config, tokenizer)
    assert origins.model is not None
    assert origins.config is not None
    if not shares_folder:
        only = None if origins.config is origins.model else [safe_copy.CONFIG]
        copy_settings(origins.config, own_folder, only=only)
    config = checks.load_config(own_folder, origins.config.name)
    checks.require_head(task, request.spec, config)
    tokenizer = load_tokenizer()
    card = {base_model_card.CARD}.intersection(origins.model.files)
    wanted = [*origins.model.settings(), *(weights if with_weights else ()), *card]
    folder = origins.model.fetch(wanted)
    of_job = request.base_job
    base_card = base_model_card.read(folder) if of_job is None else base_model_card.of_job(of_job)
    if with_weights:
        vetting = Vetting(origins.model.name, folder, own_folder, request.home, notice)
        if safe_copy.INDEX in origins.model.files and safe_copy.WHOLE not in weights:
            vetting.copy_settings([safe_copy.INDEX])
        vetting.link_weights(weights, quantized=checks.is_quantized(config))
    return Model(own_folder, tokenizer_folder, origins.model.commit, config, tokenizer, base_card)


def _copy_settings(
    origin: ModelSource,
    target: Path,
    *,
    home: Path,
    notice: Callable[[Notice], None],
    only: Sequence[str] | None = None,
) -> None:
    files = origin.settings() if only is None else only
    folder = origin.fetch(origin.settings())
    Vetting(origin.name, folder, target, home, notice).copy_settings(files)
