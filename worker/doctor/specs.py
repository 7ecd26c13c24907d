"""Job specs for checks that call the service's own code."""

from service.contract.spec import JobSpec


def plain_spec(**training: object) -> JobSpec:
    """A causal-lm spec with these training options; its model and data are never read."""
    return JobSpec.model_validate(
        {
            "task": {"type": "causal-lm"},
            "model": {"name_or_path": "doctor/plain"},
            "dataset": {"source": "upload", "train": "file-doctor"},
            "training": training,
        }
    )
