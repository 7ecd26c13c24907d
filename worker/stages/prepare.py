"""prepare: resolve revisions, download, check every row, tokenise into the shared cache."""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from service.contract import prepared_data
from service.contract.events import (
    ArtifactWritten,
    Notice,
    PhaseChanged,
    Progress,
    StageEvent,
)
from service.contract.failures import FailureCode, StageError
from service.contract.roles import DEFAULT_PROJECT
from service.contract.spec import JobSpec
from service.contract.splits import TEST, TRAIN, VALIDATION, is_validation, kind
from service.contract.stages import BaseCard, BaseJob, PrepareResult, ResumeSource, StageRequest
from service.contract.states import Phase
from worker.base_model import checks, finished_model, from_scratch, size, vetted
from worker.base_model import files as base_model_files
from worker.base_model.files import Located
from worker.base_model.vetted import Vetting
from worker.data import report, sources
from worker.data.cleaning import Checking, Tally
from worker.data.held_out import HeldOut
from worker.data.load import Examples
from worker.data.prepared_size import SizeLimit
from worker.data.sources import Data
from worker.data.table import Cleaner, Row
from worker.data.usable_rows import Policy, Split
from worker.publishing import base_model_card, hub_repository
from worker.stages import model_faults, resumed_job
from worker.stages.base import Channel, run_stage
from worker.storage import atomic_dir, content_cache
from worker.tasks import registry, row_checks
from worker.tasks.base import EXAMPLES_FILE, FEATURES_FILE, ComparesLabels, PrepareContext, Task

_LAYOUT = 1  # of a cache entry
_WHERE_LOADED = frozenset({"name_or_path", "is_local", "local_files_only", "tokenizer_file"})
"""Settings of a saved tokenizer that do not change its output."""
LabelCheck = Callable[[Row], None]
_LIMITS = {
    TRAIN: "max_train_samples",
    VALIDATION: "max_eval_samples",
    TEST: "max_predict_samples",
}


@dataclass(frozen=True)
class Model:
    """The base model on local disk, checked; the weights are not loaded."""

    folder: Path
    tokenizer_folder: Path
    revision: str | None
    config: Any
    tokenizer: Any
    card: BaseCard | None = None


def main(request: StageRequest, channel: Channel) -> PrepareResult:
    quiet_libraries()
    events = Events(channel)
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
    entry = preparation.run(request.cache_dir, request.project_id)
    _require_same_data(request, entry)
    _require_same_base(request)
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
    )


def _claim_repository(request: StageRequest, events: "Events") -> str | None:
    """Create the repository of `hub` before anything is computed; its full name.

    Raises StageError if the operator's token may not write to it.
    """
    target = request.hub_target
    if target is None:
        return None
    with hub_repository.refusals_explained():
        repository = hub_repository.Repository(target, request.hub_endpoint)
        url = repository.ensure_exists()
    data = {"model_id": repository.model_id, "url": url, "revision": target.revision}
    events.notice(Notice(message=f"The Hub token may push the model to {url}", data=data))
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


def resolve_data(request: StageRequest, events: "Events") -> Data:
    data = sources.resolve(request, events.progress)
    percentage = request.spec.dataset.validation_split_percentage
    if percentage is None or request.spec.mode == "predict":
        return data
    training = request.spec.training
    seed = training.seed if training.data_seed is None else training.data_seed
    return HeldOut(data, percentage, seed, trains=request.spec.trains)


class Sink(Protocol):
    def send(self, event: StageEvent) -> None: ...


class Events:
    """The events that the user sees."""

    def __init__(self, channel: Sink) -> None:
        self._channel = channel

    def phase(self, phase: Phase) -> None:
        self._channel.send(PhaseChanged(phase=phase))

    def progress(self, done: int, total: int) -> None:
        """`total` is 0 while it is unknown."""
        self._channel.send(Progress(step=done, of=total))

    def notice(self, notice: Notice) -> None:
        self._channel.send(notice)

    def starts_from_job(self, base: BaseJob) -> None:
        what = "finished model" if base.step is None else f"checkpoint of step {base.step}"
        message = f"Starts from the {what} of {base.job}"
        self.notice(Notice(message=message, data={"base_job": base.job, "step": base.step}))

    def artifact(self, name: str, file: Path, workspace: Path) -> None:
        self._channel.send(
            ArtifactWritten(
                name=name,
                path=str(file.relative_to(workspace)),
                bytes=file.stat().st_size,
                sha256=atomic_dir.file_sha256(file),
            )
        )

    def resumes_from(self, source: ResumeSource) -> None:
        message = f"Resumes from the checkpoint of step {source.step} of {source.job}"
        self.notice(Notice(message=message, data={"base_job": source.job, "step": source.step}))

    def resolved(self, origins: "Origins", data: Data) -> None:
        known = {
            name: located.commit
            for name, located in vars(origins).items()
            if located is not None and located.commit is not None
        }
        if data.revision is not None:
            known["dataset"] = data.revision
        if known:
            text = ", ".join(f"{name} {commit[:12]}" for name, commit in known.items())
            self.notice(Notice(message=f"Resolved to commits: {text}", data=known))


@dataclass(frozen=True)
class Origins:
    """Without model and config the model is created from scratch."""

    model: Located | None
    config: Located | None
    tokenizer: Located


def locate_model(request: StageRequest) -> Origins:
    """Look up the repositories or folders; `model.revision` is that of the model alone.

    A job that is prepared again uses the same commit as before.
    """
    spec = request.spec.model
    before = None if request.prepared is None else request.prepared.model_revision

    def locate(name: str, revision: str | None, setting: str) -> Located:
        return base_model_files.locate(
            name,
            revision,
            roots=request.model_roots,
            setting=setting,
            cache_dir=request.downloads,
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
    _copy_settings(origins.tokenizer, tokenizer_folder, notice)

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
        only = None if origins.config is origins.model else [vetted.CONFIG]
        _copy_settings(origins.config, own_folder, notice, only)
    config = checks.load_config(own_folder, origins.config.name)
    tokenizer = load_tokenizer()
    card = {base_model_card.CARD}.intersection(origins.model.files)
    wanted = [*origins.model.settings(), *(weights if with_weights else ()), *card]
    folder = origins.model.fetch(wanted)
    of_job = request.base_job
    base_card = base_model_card.read(folder) if of_job is None else base_model_card.of_job(of_job)
    if with_weights:
        vetting = Vetting(origins.model.name, folder, own_folder, notice)
        if vetted.INDEX in origins.model.files and vetted.WHOLE not in weights:
            vetting.copy_settings([vetted.INDEX])
        vetting.link_weights(weights, quantized=checks.is_quantized(config))
    return Model(own_folder, tokenizer_folder, origins.model.commit, config, tokenizer, base_card)


def _copy_settings(
    origin: Located,
    target: Path,
    notice: Callable[[Notice], None],
    only: Sequence[str] | None = None,
) -> None:
    files = origin.settings() if only is None else only
    folder = origin.fetch(origin.settings())
    Vetting(origin.name, folder, target, notice).copy_settings(files)


class DataReporter:
    """Decides whether the rows can be used, and writes the artifact `data_report.json`."""

    def __init__(self, request: StageRequest, data: Data, events: Events) -> None:
        dataset = request.spec.dataset
        self.policy = Policy(dataset.on_bad_row == "skip", dataset.max_bad_fraction)
        self.max_prepared_bytes = request.max_prepared_bytes
        self._request = request
        self._data = data
        self._events = events

    def require_usable(self, tallies: Mapping[str, Tally]) -> None:
        """Raise a StageError that names the bad rows of splits that cannot be used."""
        splits = [Split(name, tally, self._data.names(name)) for name, tally in tallies.items()]
        problem = self.policy.problem(splits)
        if problem is not None:
            self._write(tallies, {})
            raise problem
        for split, tally in tallies.items():
            if counts := {name: count for name, count in report.told(tally).items() if count}:
                text = ", ".join(f"{name} {count:,}" for name, count in counts.items())
                message = f"Of {tally.read:,} rows of the {split} split: {text}"
                self._events.notice(Notice(message=message, data={"split": split, **counts}))

    def of_entry(self, entry: content_cache.Entry) -> dict[str, Any] | None:
        """None for data prepared by an older release."""
        found = report.read(entry.folder)
        return None if found is None else report.summary(self._write(*found))

    def _write(self, tallies: Mapping[str, Tally], measures: Mapping[str, Any]) -> dict[str, Any]:
        names = {split: self._data.names(split) for split in tallies}
        made = report.render(self.policy, names, tallies, measures)
        file = self._request.attempt_dir / report.NAME
        file.write_text(json.dumps(made, indent=2, ensure_ascii=False), encoding="utf-8")
        self._events.artifact(report.NAME, file, self._request.workspace)
        return made


class Preparation:
    """From resolved data to an entry of the shared cache."""

    def __init__(
        self,
        spec: JobSpec,
        task: Task,
        model: Model,
        max_length: int,
        data: Data,
        events: Events,
        reporter: DataReporter,
    ) -> None:
        self._reporter = reporter
        self._spec = spec
        self._task = task
        self._model = model
        self._max_length = max_length
        self._data = data
        self._events = events

    def run(self, cache_dir: Path, project_id: str = DEFAULT_PROJECT) -> content_cache.Entry:
        ingredients = content_cache.of_project(project_id, self._ingredients())
        key = content_cache.address(ingredients)
        entry = content_cache.get_or_build(cache_dir / prepared_data.FOLDER, key, self._build)
        if entry.found:
            message = "Reusing the prepared data of an earlier job: nothing to check or tokenize"
            self._events.notice(Notice(message=message, data={"fingerprint": key}))
        return entry

    def _ingredients(self) -> Mapping[str, Any]:
        """Everything that the prepared data depends on."""
        import datasets
        import tokenizers
        import transformers

        return {
            "layout": _LAYOUT,
            "task": self._task.name,
            "settings": dict(self._task.tokenization_settings(self._spec.task)),
            "max_length": self._max_length,
            "data": self._data.fingerprint(),
            "columns": self._spec.columns,
            "limits": {split: self._limit(split) for split in self._data.splits()},
            "tokenizer": tokenizer_identity(self._model.tokenizer),
            **self._skipping(),
            "versions": [datasets.__version__, tokenizers.__version__, transformers.__version__],
        }

    def _skipping(self) -> Mapping[str, Any]:
        """Nothing by default, so that data prepared by older releases keeps its address."""
        policy = self._reporter.policy
        return {"skipping": policy.max_bad_fraction} if policy.skips else {}

    def _build(self, folder: Path) -> content_cache.Counts:
        counts: content_cache.Counts = {}
        measures = {}
        self._events.phase(Phase.CHECKING)
        tallies = self.check_all(folder)
        self._reporter.require_usable(tallies)
        self._events.phase(Phase.TOKENIZING)
        for split, tally in tallies.items():
            counts[split] = {"examples": tally.used}
            made, measures[split] = self.tokenize(split, folder / split)
            counts[split] |= made
        report.write(folder, tallies, measures)
        return counts

    def check_all(self, folder: Path) -> dict[str, Tally]:
        """Check the training rows first: validation rows may have only their labels."""
        tallies: dict[str, Tally] = {}
        label_check = None
        for split in self._data.splits():
            check = label_check if is_validation(split) else None
            tallies[split] = self._check(split, folder / split, check)
            if split == TRAIN:
                label_check = self._label_check(folder / split, tallies[split])
        return tallies

    def _label_check(self, folder: Path, train: Tally) -> LabelCheck | None:
        """None if no labels are compared, or if the labels are not known yet, because bad rows that
        must be corrected first may have more."""
        known = train.used > 0 and (self._reporter.policy.skips or not train.bad)
        if not known or not isinstance(self._task, ComparesLabels):
            return None
        return self._task.label_check(self._spec, _examples(folder))

    def _check(self, split: str, folder: Path, label_check: LabelCheck | None) -> Tally:
        folder.mkdir()
        task = self._task.name
        clean = row_checks.ROW_CHECKS[task].cleaner(split, self._spec.task)
        checking = Checking(
            columns=row_checks.columns(task, split, self._spec.columns),
            clean=clean if label_check is None else _both(clean, label_check),
            limit=self._limit(split),
            skips=self._reporter.policy.skips,
        )
        examples = Examples(checking, self._task.example_schema(), self._size(split))
        return examples.write(
            self._data.tables(split),
            folder / EXAMPLES_FILE,
            lambda rows: self._events.progress(rows, 0),
        )

    def tokenize(self, split: str, folder: Path) -> tuple[dict[str, int], dict[str, Any]]:
        context = PrepareContext(
            spec=self._spec,
            tokenizer=self._model.tokenizer,
            config=self._model.config,
            max_length=self._max_length,
            notice=self._events.notice,
            progress=self._events.progress,
            train_examples=_examples(folder.parent / TRAIN) if self._spec.trains else None,
            size=self._size(split),
        )
        examples, target = _examples(folder), folder / FEATURES_FILE
        with model_faults.in_tokenizer():
            features = self._task.prepare(split, examples, context, target)
        return {"features": features, **context.counts}, context.measures.summary()

    def _size(self, split: str) -> SizeLimit:
        return SizeLimit(split, self._reporter.max_prepared_bytes)

    def _limit(self, split: str) -> int | None:
        limit: int | None = getattr(self._spec.dataset, _LIMITS[kind(split)])
        return limit


def _both(clean: Cleaner, label_check: LabelCheck) -> Cleaner:
    def check(row: Row) -> dict[str, Any]:
        cleaned = clean(row)
        label_check(cleaned)
        return cleaned

    return check


def _examples(folder: Path) -> Any:
    import datasets

    return datasets.Dataset.from_file(str(folder / EXAMPLES_FILE))


def tokenizer_identity(tokenizer: Any) -> str:
    """sha256 of the state of a tokenizer that affects its output."""
    fast = tokenizer.is_fast
    state = {
        "tokenizer": json.loads(tokenizer.backend_tokenizer.to_str()) if fast else _slow(tokenizer),
        "padding_side": tokenizer.padding_side,
        "inputs": tokenizer.model_input_names,
        "specials": tokenizer.special_tokens_map,
    }
    return content_cache.address(state)


def _slow(tokenizer: Any) -> dict[str, Any]:
    """A slow tokenizer: its class, and the files it saves."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = {path.name: path for path in Path(folder).iterdir()}
        settings = json.loads(files.pop("tokenizer_config.json").read_text())
        hashes = {name: atomic_dir.file_sha256(path) for name, path in sorted(files.items())}
    kept = {name: value for name, value in settings.items() if name not in _WHERE_LOADED}
    return {"class": type(tokenizer).__name__, "files": hashes, "settings": kept}


def quiet_libraries() -> None:
    """Turn off progress bars: they are for terminals. (The Hub client has a variable for this.)"""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()


if __name__ == "__main__":
    run_stage(main)
