"""What each stage produces for the next one, and whether it still exists."""

from collections.abc import Collection, Iterator
from pathlib import Path

from service.contract.stage import home_paths
from service.contract.stage.stages import PrepareResult
from service.contract.states import Stage
from service.settings import Settings
from service.store.tables.jobs import JobRow


def first_stage(
    job: JobRow, stage: Stage, settings: Settings, lost: Collection[str]
) -> tuple[Stage, list[str]]:
    """The stage to begin with, an earlier one if its inputs were removed; and what is missing.

    `lost`: ids of jobs whose files were or will be removed.

    `publish` needs the finished model, `train` the prepared data, the base model and its
    tokenizer. Without a checkpoint `train` begins at its first step.
    """
    missing = []
    if stage is Stage.PUBLISH and not model_is_there(job, settings):
        missing.append("finished_model")
        stage = Stage.TRAIN
    if stage is Stage.TRAIN:
        of_prepare = list(_missing_of_prepare(job, settings, lost))
        if of_prepare:
            missing += of_prepare
            stage = Stage.PREPARE
    return stage, missing


def model_is_there(job: JobRow, settings: Settings) -> bool:
    output = job.results[Stage.TRAIN]["output_dir"]
    if output is None:  # the job does not train, and has no model to publish
        return True
    folder = settings.workspace(job.id) / output
    return job.workspace_pruned_at is None and folder.is_dir()


def _missing_of_prepare(job: JobRow, settings: Settings, lost: Collection[str]) -> Iterator[str]:
    prepared = PrepareResult.of_results(job.results, settings.home)
    assert prepared is not None, "its stage comes after `prepare`"
    needed = prepared.folders()
    if prepared.resume_source is not None:
        needed["checkpoint_of_other_job"] = prepared.resume_source.folder
    doomed = [settings.workspace(each) for each in lost]
    if job.workspace_pruned_at is not None:
        doomed.append(settings.workspace(job.id))
    for name, folder in needed.items():
        if not home_paths.is_there(folder, settings.home) or _is_in(doomed, folder):
            yield name


def _is_in(doomed: Collection[Path], folder: Path) -> bool:
    """Whether `folder`, or what its links lead to, is among files that are about to go."""
    links = (path for path in folder.iterdir() if path.is_symlink())
    places = [folder.resolve(), *(link.resolve() for link in links)]
    return any(place.is_relative_to(root.resolve()) for root in doomed for place in places)
