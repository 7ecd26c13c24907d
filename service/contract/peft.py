"""PeftSpec: parameter-efficient fine-tuning, under the names and defaults of peft's own configs.

The base model's weights stay as they are; a few new ones beside them are trained, kept in the
checkpoints, and published as an adapter.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from service.contract.types import SpecModel, Text

if TYPE_CHECKING:
    from service.contract.spec import JobSpec

ALL_LINEAR: Final = "all-linear"

BASE_CONFIG_FOLDER: Final = "base_model_config"
"""Beside an adapter: the base model's configuration as it was trained, with labels and first
tokens. Not in the folder itself, which transformers would then take for a whole model's."""

# Variant of a task → peft's task type; a prompt or a prefix needs one, the other methods do not.
TASK_TYPES: Final[dict[str, str]] = {
    "causal-lm": "CAUSAL_LM",
    "summarization": "SEQ_2_SEQ_LM",
    "translation": "SEQ_2_SEQ_LM",
    "text-classification": "SEQ_CLS",
    "token-classification": "TOKEN_CLS",
    "question-answering": "QUESTION_ANS",
}

_SHIFTED: Final = (
    "`peft` by `prompt-tuning` puts virtual tokens before the text, and the outputs of a "
    "`{task}` model would no longer stand at their tokens: use `prefix-tuning` or `lora`"
)
_NO_PROMPT: Final = "`peft` by `{method}` does not exist for `{task}`: use `lora` or `ia3`"


def _compilable(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from error
    return value


Pattern = Annotated[Text, AfterValidator(_compilable)]
Names = Annotated[list[Text], Field(min_length=1, max_length=1000)]


def _names_or_pattern(value: Any) -> str:
    return "[names]" if isinstance(value, list) else "[pattern]"


Modules = Annotated[
    Annotated[Names, Tag("[names]")] | Annotated[Pattern, Tag("[pattern]")],
    Discriminator(_names_or_pattern),
]
Prompt = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]


class QuantizationSpec(SpecModel):
    """The frozen weights in few bits, by bitsandbytes; its names without `bnb_4bit_`."""

    bits: Literal[4, 8] = Field(examples=[4])
    quant_type: Literal["nf4", "fp4"] | None = Field(None, description="4 bits; default: nf4.")
    double_quant: bool | None = Field(
        None, description="4 bits: the scales in few bits as well; default: false."
    )
    compute_dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None,
        description="4 bits: of the products; default: as `training.bf16` or fp16, else float32.",
    )

    @model_validator(mode="after")
    def _options_fit_the_bits(self) -> "QuantizationSpec":
        four = ("quant_type", "double_quant", "compute_dtype")
        given = [f"`{name}`" for name in four if getattr(self, name) is not None]
        if self.bits == 8 and given:
            raise ValueError(f"{' and '.join(given)} need `bits: 4`")
        return self


class _Method(SpecModel):
    method: str

    @property
    def virtual_tokens(self) -> int:
        """Places that the method takes from those that the model has."""
        return 0

    @property
    def merges(self) -> bool:
        """Whether the finished model is a whole one, without an adapter."""
        return False


class _Targeting(_Method):
    """A method that changes modules of the base model."""

    target_modules: Modules | None = Field(
        None,
        description="Ends of module names, or one regular expression for whole names, or "
        "`all-linear`; default: what peft names for the model's type.",
    )
    exclude_modules: Modules | None = Field(
        None, description="Not these, although `target_modules` names them."
    )
    modules_to_save: Names | None = Field(
        None, description="Ends of names of modules that are trained whole. New heads always are."
    )


class LoraSpec(_Targeting):
    """Low-rank changes beside the weights; also rsLoRA, DoRA and LoRA on quantised weights."""

    method: Literal["lora"] = "lora"
    r: int = Field(8, ge=1, le=65536, description="Rank.")
    lora_alpha: int = Field(8, ge=1, description="The change is scaled by lora_alpha / r.")
    lora_dropout: float = Field(0.0, ge=0, lt=1)
    bias: Literal["none", "all", "lora_only"] = Field("none", description="Biases to train.")
    use_rslora: bool = Field(False, description="Scale by lora_alpha / √r instead.")
    use_dora: bool = Field(False, description="Train each weight's magnitude apart.")
    lora_bias: bool = Field(False, description="The low-rank change has a bias, too.")
    init_lora_weights: Literal["gaussian", "orthogonal"] | Literal[True] = Field(
        True, description="How the change begins; each way it is zero."
    )
    layers_to_transform: Annotated[list[int], Field(min_length=1)] | None = Field(
        None, description="Only in the layers of these numbers."
    )
    rank_pattern: dict[Pattern, Annotated[int, Field(ge=1)]] = Field(
        default_factory=dict, max_length=1000, description="End of a module's name → its own r."
    )
    alpha_pattern: dict[Pattern, Annotated[int, Field(ge=1)]] = Field(
        default_factory=dict, max_length=1000, description="The same for lora_alpha."
    )
    quantization: QuantizationSpec | None = Field(
        None, description="Load the base weights in 8 or 4 bits."
    )
    merge: bool = Field(
        False, description="Add the change to the base weights before the model is saved."
    )

    @property
    def merges(self) -> bool:
        return self.merge

    @model_validator(mode="after")
    def _options_agree(self) -> "LoraSpec":
        problems = list(_lora_problems(self))
        if problems:
            raise ValueError("; ".join(problems))
        return self


def _lora_problems(spec: LoraSpec) -> Iterator[str]:
    if spec.layers_to_transform is not None and isinstance(spec.target_modules, str):
        yield (
            "`layers_to_transform` needs `target_modules` as a list of names: say the layers in "
            "the regular expression instead"
        )
    if spec.merge and spec.quantization is not None:
        yield (
            "`merge` needs the base weights in full, and `quantization` rounds them: publish the "
            "adapter, and merge it into the unquantised model"
        )
    if spec.lora_bias and spec.use_dora:
        yield "`lora_bias` and `use_dora` exclude each other"
    if spec.init_lora_weights == "orthogonal" and any(
        rank % 2 for rank in (spec.r, *spec.rank_pattern.values())
    ):
        yield "`init_lora_weights: orthogonal` needs even ranks in `r` and `rank_pattern`"


class IA3Spec(_Targeting):
    """(IA)³: one factor for each output of attention, and for each input of feed-forward."""

    method: Literal["ia3"] = "ia3"
    feedforward_modules: Modules | None = Field(
        None, description="Those of `target_modules` whose input is scaled, not their output."
    )

    @model_validator(mode="after")
    def _feedforward_is_targeted(self) -> "IA3Spec":
        targets, feedforward = self.target_modules, self.feedforward_modules
        if (targets is None) != (feedforward is None):
            raise ValueError("`target_modules` and `feedforward_modules` go together: give both")
        if isinstance(targets, list) and isinstance(feedforward, list):
            others = sorted(set(feedforward) - set(targets))
            if others:
                raise ValueError(
                    f"`feedforward_modules` names {', '.join(others)}, which `target_modules` "
                    "does not"
                )
        return self


class _Prompting(_Method):
    """A method that gives the model tokens that are no words."""

    num_virtual_tokens: int = Field(ge=1, le=100_000, examples=[20])

    @property
    def virtual_tokens(self) -> int:
        return self.num_virtual_tokens


class PromptTuningSpec(_Prompting):
    """Trained embeddings before those of the text."""

    method: Literal["prompt-tuning"] = "prompt-tuning"
    prompt_tuning_init: Literal["RANDOM", "SAMPLE_VOCAB", "TEXT"] = Field(
        "RANDOM", description="Of the vocabulary's, or of `prompt_tuning_init_text`."
    )
    prompt_tuning_init_text: Prompt | None = Field(
        None, description="Repeated or cut to `num_virtual_tokens`."
    )

    @model_validator(mode="after")
    def _text_fits(self) -> "PromptTuningSpec":
        if (self.prompt_tuning_init == "TEXT") != (self.prompt_tuning_init_text is not None):
            raise ValueError("`prompt_tuning_init: TEXT` and `prompt_tuning_init_text` go together")
        return self


class PrefixTuningSpec(_Prompting):
    """Trained keys and values before those of the text, in every layer."""

    method: Literal["prefix-tuning"] = "prefix-tuning"
    prefix_projection: bool = Field(False, description="Make them by a small network.")
    encoder_hidden_size: int | None = Field(
        None, ge=1, description="Its width; default: the model's."
    )
    init_weights: Literal["zero"] | None = Field(
        None, description="Default: at random; not with `prefix_projection`."
    )

    @model_validator(mode="after")
    def _projection_fits(self) -> "PrefixTuningSpec":
        if self.encoder_hidden_size is not None and not self.prefix_projection:
            raise ValueError("`encoder_hidden_size` needs `prefix_projection`")
        if self.init_weights is not None and self.prefix_projection:
            raise ValueError("`init_weights` and `prefix_projection` exclude each other")
        return self


PeftSpec = LoraSpec | IA3Spec | PromptTuningSpec | PrefixTuningSpec


def contradictions(job: "JobSpec") -> Iterator[str]:
    """What the section `peft` does not go with in the rest of the job, a sentence each."""
    peft, task = job.peft, job.task.variant()
    if peft is None:
        return
    if job.model.config is not None:
        yield (
            "`peft` changes a model that has learnt something, and `model.config` is one from "
            "scratch: leave one of them out"
        )
    if isinstance(peft, PromptTuningSpec | PrefixTuningSpec):
        yield from _prompt_problems(job, peft, task)
    if isinstance(peft, LoraSpec) and peft.quantization is not None:
        yield from _quantization_problems(job, peft.quantization)


def _quantization_problems(job: "JobSpec", wanted: QuantizationSpec) -> Iterator[str]:
    for name in ("bf16_full_eval", "fp16_full_eval"):
        if getattr(job.training, name):
            yield f"`training.{name}` cannot change the dtype of `peft.quantization`'s weights"
    if wanted.bits == 4 and (job.training.use_cpu or job.resources.gpus == 0):
        yield (
            "`peft.quantization.bits` is 4, which needs a GPU: on a CPU only 8 bits can be trained "
            "on"
        )


def _prompt_problems(
    job: "JobSpec", peft: PromptTuningSpec | PrefixTuningSpec, task: str
) -> Iterator[str]:
    if task not in TASK_TYPES:
        yield _NO_PROMPT.format(method=peft.method, task=task)
    elif isinstance(peft, PromptTuningSpec) and TASK_TYPES[task] in {"TOKEN_CLS", "QUESTION_ANS"}:
        yield _SHIFTED.format(task=task)
    if job.training.padding_free:
        yield f"`training.padding_free` excludes `peft` by `{peft.method}`: use `lora` or `ia3`"
    if getattr(job.task, "separate_documents", False):
        yield (
            "`task.separate_documents` would part the documents from the virtual tokens of "
            f"`peft` by `{peft.method}`: use `lora` or `ia3`"
        )
    if isinstance(peft, PrefixTuningSpec) and job.training.activation_checkpointing:
        yield (
            "`training.activation_checkpointing` excludes `peft` by `prefix-tuning`: the prefix is "
            "handed on in the cache that checkpointing turns off"
        )
