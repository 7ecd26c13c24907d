"""A job's data as inputs of its run: one per split, with names of files instead of ids."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from service.contract import splits
from service.contract.dataset import HubDataset
from service.contract.spec import JobSpec
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
    for split, value in splits.used(spec).items():
        name = splits.validation_name(split) if splits.is_validation(split) else ""
        if isinstance(dataset, HubDataset):
            shown = f"{dataset.name} ({value})"
        else:
            shown = ", ".join(file_names_of(value, file_names))
        source = {"source": dataset.source, splits.kind(split): value}
        if isinstance(dataset, HubDataset):
            source |= {"name": dataset.name, "config": dataset.config}
        yield DatasetInput(
            name=f"{name}: {shown}" if name else shown,
            digest=str(prepared["data_fingerprint"]),
            source_type=dataset.source,
            source=source,
            context=_CONTEXTS[splits.kind(split)],
            profile=dict((prepared.get("splits") or {}).get(split) or {}),
        )
