"""A job's data as inputs of its run: one per split, with names of files instead of ids."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from service.contract.spec import splits
from service.contract.spec.dataset import HubDataset
from service.contract.spec.spec import JobSpec
from worker.tracking.run_description import file_names_of
from worker.tracking.trackers import DatasetInput

_CONTEXTS: Final = {splits.TRAIN: "training", splits.VALIDATION: "validation", splits.TEST: "test"}


def label(spec: JobSpec, file_names: Mapping[str, str]) -> str:
    """The training rows, if the job trains."""
    if isinstance(spec.dataset, HubDataset):
        return spec.dataset.name
    first = next(iter(splits.used(spec).values()))
    return ", ".join(file_names_of(first, file_names))


def inputs(
    spec: JobSpec, prepared: Mapping[str, Any], file_names: Mapping[str, str]
) -> Iterator[DatasetInput]:
    """One per split that the job reads; none until `prepare` has determined the data."""
    if not prepared.get("data_fingerprint"):
        return
    dataset = spec.dataset
    names = {
        split: _name(spec, split, value, file_names) for split, value in splits.used(spec).items()
    }
    for split, value in splits.used(spec).items():
        # To MLflow, inputs of one name and digest are one.
        is_unique = list(names.values()).count(names[split]) == 1
        source = {"source": dataset.source, splits.kind(split): value}
        if isinstance(dataset, HubDataset):
            source |= {"name": dataset.name, "config": dataset.config}
        yield DatasetInput(
            name=names[split] if is_unique else f"{names[split]} ({split})",
            digest=str(prepared["data_fingerprint"]),
            source_type=dataset.source,
            source=source,
            context=_CONTEXTS[splits.kind(split)],
            profile=dict((prepared.get("splits") or {}).get(split) or {}),
        )


def _name(spec: JobSpec, split: str, value: Any, file_names: Mapping[str, str]) -> str:
    """What the data is called, after the name of the validation set if there are several."""
    if isinstance(spec.dataset, HubDataset):
        shown = f"{spec.dataset.name} ({value})"
    else:
        shown = ", ".join(file_names_of(value, file_names))
    name = splits.validation_name(split) if splits.is_validation(split) else ""
    return f"{name}: {shown}" if name else shown
