"""prepare: resolve revisions, download, check every row, tokenise into the shared cache."""

from service.contract.failures import FailureCode, StageError
from service.contract.stage.events import Notice
from service.contract.stage.stages import PrepareResult, StageRequest
from service.contract.states import Phase
from worker.base_model import checks, finished_model, size
from worker.publishing import hub_access, hub_repository
from worker.stages.base import Channel, run_stage
from worker.stages.prepare import best_metric, resumed_job
from worker.stages.prepare.data import Preparation, resolve_data
from worker.stages.prepare.data_reporter import DataReporter
from worker.stages.prepare.events import Events
from worker.stages.prepare.model import fetch_model, locate_model
from worker.stages.quiet_libraries import quiet_libraries
from worker.storage import content_cache
from worker.tasks import registry
from worker.tasks.base import load_splits


def main(request: StageRequest, channel: Channel) -> PrepareResult:
    quiet_libraries()
    events = Events(channel.send)
    task = registry.get(request.spec.variant())
    events.phase(Phase.RESOLVING)
    hub_model_id = _claim_repository(request, events)
    origins = locate_model(request)
    data = resolve_data(request, events)
    events.resolved(origins, data)
    if request.base_job is not None:
        events.starts_from_job(request.base_job)
    events.phase(Phase.DOWNLOADING)
    model = fetch_model(request, origins, task, events.notice)
    request = finished_model.with_labels_of(request, task, model.config)
    checked = checks.check_model(task, request.spec, model.config, model.tokenizer, events.notice)
    size.require_fits_disk(checked.size, request.spec, request.workspace)
    if request.spec.resources.gpus == 0 or request.spec.training.use_cpu:
        size.require_fits_host(checked.size, request.spec)
    finished_model.check_weights(request.spec, task, model.folder)
    reporter = DataReporter(request, data, events)
    preparation = Preparation(request.spec, task, model, checked.max_length, data, events, reporter)
    entry = preparation.run(request.project_cache)
    _require_same_data(request, entry)
    _require_same_base(request)
    best_metric.require_reported(request.spec, task, load_splits(entry.folder))
    resume_source = resumed_job.taken_over(request, entry.folder.name, model.revision)
    if resume_source is not None:
        events.resumes_from(resume_source)
    return PrepareResult(
        prepared_dir=entry.folder,
        model_dir=model.folder,
        tokenizer_dir=model.tokenizer_folder,
        model_revision=model.revision,
        dataset_revision=data.revision,
        data_fingerprint=entry.folder.name,
        splits=entry.splits,
        hub_model_id=hub_model_id,
        base_job=request.base_job,
        resume_source=resume_source,
        base_card=model.card,
        data_report=reporter.of_entry(entry),
        model_parameters=checked.size.parameters,
        model_buffer_bytes=checked.size.buffers,
        model_shapes=checked.shapes,
    )


def _claim_repository(request: StageRequest, events: Events) -> str | None:
    """Create the repository of `hub` before anything is computed; its full name.

    Raises StageError if the job's token may not write to it.
    """
    target = request.hub_target
    if target is None:
        return None
    with hub_repository.refusals_explained():
        repository = hub_repository.Repository(request)
        url = repository.ensure_exists()
    data = {"model_id": repository.model_id, "url": url, "revision": target.revision}
    message = f"{hub_access.name_of_token(request.spec)} may push the model to {url}"
    events.notice(Notice(message=message, data=data))
    return repository.model_id


def _require_same_data(request: StageRequest, entry: content_cache.Entry) -> None:
    """Raise StageError if a job that is prepared again finds different data.

    Its checkpoints and its metrics belong to the earlier data.
    """
    before = request.prepared
    if before is not None and before.data_fingerprint != entry.folder.name:
        raise StageError(
            FailureCode.DATA_CHANGED,
            "The prepared data of this job was removed, and what its data set, its tokenizer and "
            "the libraries that read them give now is not the same.",
            before=before.data_fingerprint,
            now=entry.folder.name,
        )


def _require_same_base(request: StageRequest) -> None:
    """As above, of the model of another job, which may have been given another one since."""
    before = request.prepared.base_job if request.prepared is not None else None
    now = request.base_job
    if before is not None and now is not None and before.sha256 != now.sha256:
        message = f"The model of {before.job} is not the one that this job began with."
        raise StageError(FailureCode.DATA_CHANGED, message, before=before.step, now=now.step)


if __name__ == "__main__":
    run_stage(main)
