"""What each stage produces for the next one, and whether it still exists."""

from collections.abc import Collection, Iterator
from pathlib import Path

from service.contract.stages import PrepareResult
from service.contract.states import Stage
from service.settings import Settings
from service.store.models import JobRow


def stage_to_retry(
    job: JobRow, settings: Settings, lost: Collection[str] = ()
) -> tuple[Stage, list[str]]:
    """As `first_stage` for the stage that failed."""
    return first_stage(job, Stage(job.stage), settings, lost)


def first_stage(
    job: JobRow, stage: Stage, settings: Settings, lost: Collection[str]
) -> tuple[Stage, list[str]]:
    """The stage to begin with, an earlier one if its outputs are gone; and what is gone.

    `lost`: ids of jobs whose files are gone or about to go.

    `publish` needs the finished model, `train` the prepared data, the base model and its
    tokenizer. Without a checkpoint `train` begins at its first step.
    """
    missing = []
    if stage is Stage.PUBLISH and not model_is_there(job, settings):
        missing.append("finished_model")
        stage = Stage.TRAIN
    if stage is Stage.TRAIN:
        gone = list(_gone_of_prepare(job, settings, lost))
        if gone:
            missing += gone
            stage = Stage.PREPARE
    return stage, missing


def model_is_there(job: JobRow, settings: Settings) -> bool:
    output = job.results[Stage.TRAIN]["output_dir"]
    if output is None:  # the job does not train, and has no model to publish
        return True
    folder = settings.workspace(job.id) / output
    return job.workspace_pruned_at is None and folder.is_dir()


def _gone_of_prepare(job: JobRow, settings: Settings, lost: Collection[str]) -> Iterator[str]:
    prepared = PrepareResult.model_validate(job.results[Stage.PREPARE])
    needed = [
        ("prepared_data", prepared.prepared_dir),
        ("base_model", prepared.model_dir),
        ("tokenizer", prepared.tokenizer_dir),
    ]
    if prepared.resume_source is not None:
        needed.append(("checkpoint_of_other_job", prepared.resume_source.folder))
    for name, path in needed:
        places = [path, *_linked(path, settings)]
        in_lost = any(
            place.is_relative_to(settings.workspace(each)) for each in lost for place in places
        )
        if in_lost or _is_gone(path, job, settings) or not all(map(Path.exists, places[1:])):
            yield name


def _linked(folder: Path, settings: Settings) -> list[Path]:
    """The weights of another job that the links in `folder` lead to."""
    if not folder.is_relative_to(settings.home) or not folder.is_dir():
        return []
    targets = (path.readlink() for path in folder.iterdir() if path.is_symlink())
    return [target for target in targets if target.is_relative_to(settings.home)]


def _is_gone(path: Path, job: JobRow, settings: Settings) -> bool:
    """The operator's folders may be visible to workers only: those count as present."""
    if path.is_relative_to(settings.workspace(job.id)) and job.workspace_pruned_at is not None:
        return True
    return path.is_relative_to(settings.home) and not path.is_dir()
