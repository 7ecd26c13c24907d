"""`training.resume_from` of a spec: continue the training of another job."""

from pydantic import Field

from service.contract.section import SpecModel
from service.contract.types import CheckpointChoice, JobId


class ResumeFromSpec(SpecModel):
    """A checkpoint of another job, restored whole."""

    job: JobId = Field(
        examples=["job-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"],
        description="A job with the same task, model, data and optimizer.",
    )
    checkpoint: CheckpointChoice = Field(
        "last", description="`best`, `last` or the step of a checkpoint."
    )
