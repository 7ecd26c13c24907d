"""The parameters of each task: one class a task, told apart by `type`."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from service.contract.types import SpecModel


class QuestionAnsweringSpec(SpecModel):
    """Extractive question answering as SQuAD defines it, v1.1 and v2.0."""

    type: Literal["question-answering"] = "question-answering"
    version_2_with_negative: bool = Field(
        False, description="Some questions have no answer (SQuAD v2)."
    )
    max_seq_length: int = Field(384, ge=8, description="Tokens of question, context and specials.")
    doc_stride: int = Field(128, ge=1, description="Tokens that two windows of a context share.")
    n_best_size: int = Field(20, ge=1, le=1000)
    max_answer_length: int = Field(30, ge=1, description="Tokens of the longest answer considered.")
    null_score_diff_threshold: float = Field(
        0.0,
        allow_inf_nan=False,
        description="v2: no answer when the null score beats the best span by more than this.",
    )

    @model_validator(mode="after")
    def _stride_fits(self) -> "QuestionAnsweringSpec":
        if self.doc_stride >= self.max_seq_length:
            raise ValueError(
                f"`doc_stride` ({self.doc_stride}) must be below `max_seq_length` "
                f"({self.max_seq_length})"
            )
        return self


# Each task is one class here, one file in worker/tasks and one entry in its registry. A second
# member turns this into Annotated[A | B, Field(discriminator="type")].
TaskParameters = QuestionAnsweringSpec


def _expand_task(value: Any) -> Any:
    """`task: question-answering` means that task with its defaults."""
    return {"type": value} if isinstance(value, str) else value


TaskSpec = Annotated[TaskParameters, BeforeValidator(_expand_task)]
