"""`model` of a spec: the weights and the tokenizer that a job starts from."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from service.contract.fields.section import SpecModel, rule
from service.contract.fields.types import CheckpointChoice, JobId, Moderate, Name, Text


class ModelConfigSpec(SpecModel):
    """A model without weights: they are drawn from `training.seed`."""

    model_type: Name = Field(
        examples=["gpt2"], description="As transformers names it in a config.json."
    )
    config_overrides: Annotated[dict[Name, JsonValue], Moderate] = Field(
        default_factory=dict,
        max_length=100,
        description="Fields of the type's default configuration. Vocabulary and special ids are "
        "the tokenizer's unless they are here.",
    )


class ModelSpec(SpecModel):
    name_or_path: Text | None = Field(
        None,
        examples=["distilbert/distilbert-base-uncased"],
        description="Hub id, or an absolute path under the operator's FINETUNE_MODEL_ROOTS. "
        "Required unless `job` or `config` is given.",
    )
    job: JobId | None = Field(
        None,
        examples=["job-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"],
        description="Start from the model that another job of this service trained.",
    )
    checkpoint: CheckpointChoice | None = Field(
        None,
        description="Of `job`: `best`, `last` or the step of a checkpoint. Default: the job's "
        "finished model, which is what it published.",
    )
    config: ModelConfigSpec | None = Field(
        None,
        description="Train from scratch, without the weights of any model; needs `tokenizer_name`.",
    )
    revision: Text | None = Field(None, description="Branch, tag or commit; resolved to a commit.")
    tokenizer_name: Text | None = Field(None, description="Default: that of the model.")
    config_name: Text | None = Field(None, description="Default: that of the model.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "float32",
        description="Of the loaded weights. `auto`: the checkpoint's own, but float32 instead of "
        "float16 when all weights are trained.",
    )

    @rule
    def _has_one_origin(self) -> Iterator[str]:
        if self.job is not None:
            for name in ("name_or_path", "config", "revision"):
                if getattr(self, name) is not None:
                    yield (
                        f"`{name}` is not allowed with `job`, which already names a model: "
                        "remove one of them"
                    )
        elif self.config is None and self.name_or_path is None:
            yield (
                "`name_or_path` is required, or `job` for the model of another job, or `config` "
                "for a model from scratch"
            )

    @rule
    def _checkpoint_needs_its_job(self) -> Iterator[str]:
        if self.job is None and self.checkpoint is not None:
            yield "`checkpoint` is a checkpoint of another job: `job` is missing"

    @rule
    def _from_scratch_needs_a_tokenizer(self) -> Iterator[str]:
        if self.job is None and self.config is not None and self.tokenizer_name is None:
            yield "`tokenizer_name` is required: a model from scratch has no tokenizer of its own"

    @rule
    def _from_scratch_has_no_other_origin(self) -> Iterator[str]:
        if self.job is not None or self.config is None:
            return
        for name in ("name_or_path", "revision", "config_name"):
            if getattr(self, name) is not None:
                yield f"`{name}` is not allowed for a model from scratch, which `config` describes"

    @property
    def title(self) -> str:
        """What the model starts from, in words."""
        if self.job is not None:
            step = "" if self.checkpoint is None else f" ({self.checkpoint})"
            return f"model of {self.job}{step}"
        return self.name_or_path or f"{self.config.model_type if self.config else ''} from scratch"
