"""PeftSpec: parameter-efficient fine-tuning, under the names and defaults of peft's own configs.

The base model's weights stay as they are; a few added ones are trained, kept in the
checkpoints, and published as an adapter.
"""

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
)

from service.contract.fields import patterns, regular_expressions
from service.contract.fields.bounds import MOST_LAYERS, WIDEST
from service.contract.fields.section import SpecModel, rule
from service.contract.fields.types import MOST_ENTRIES, ShortEnough, Text

ALL_LINEAR: Final = "all-linear"

BASE_CONFIG_FOLDER: Final = "base_model_config"
"""Stored with an adapter: the base model's configuration as it was trained, with labels and first
tokens. Not in the folder itself, which transformers would then take for a whole model's."""

# Variant of a task → peft's task type; a prompt or a prefix needs one, the other methods do not.
TASK_TYPES: Final[dict[str, str]] = {
    "causal-lm": "CAUSAL_LM",
    "chat": "CAUSAL_LM",
    "preference": "CAUSAL_LM",
    "reward": "SEQ_CLS",
    "summarization": "SEQ_2_SEQ_LM",
    "translation": "SEQ_2_SEQ_LM",
    "text-classification": "SEQ_CLS",
    "token-classification": "TOKEN_CLS",
    "question-answering": "QUESTION_ANS",
}


Pattern = Annotated[Text, AfterValidator(regular_expressions.checked)]
Rank = Annotated[int, Field(ge=1, le=65536)]
Scale = Annotated[int, Field(ge=1, le=WIDEST)]
_Layer = Annotated[int, Field(ge=0, le=MOST_LAYERS)]
Layers = Annotated[list[_Layer], Field(min_length=1, max_length=MOST_ENTRIES), ShortEnough]
FewLetters = BeforeValidator(regular_expressions.few_letters)
Names = Annotated[list[Text], Field(min_length=1, max_length=MOST_ENTRIES)]
Modules = Annotated[
    Annotated[Names, Tag("[names]")] | Annotated[Pattern, Tag("[pattern]")],
    Discriminator(lambda value: "[names]" if isinstance(value, list) else "[pattern]"),
]
Prompt = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=patterns.NO_NUL)]


class QuantizationSpec(SpecModel):
    """Quantise the frozen weights with bitsandbytes; its names without `bnb_4bit_`."""

    bits: Literal[4, 8] = Field(examples=[4])
    quant_type: Literal["nf4", "fp4"] | None = Field(None, description="4 bits; default: nf4.")
    double_quant: bool | None = Field(
        None, description="4 bits: the scales in few bits as well; default: false."
    )
    compute_dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None,
        description="4 bits: of the products; default: as `training.bf16` or fp16, else float32.",
    )

    @rule
    def _options_fit_the_bits(self) -> Iterator[str]:
        four = ("quant_type", "double_quant", "compute_dtype")
        given = [f"`{name}`" for name in four if getattr(self, name) is not None]
        if self.bits == 8 and given:
            yield f"{' and '.join(given)} need `bits: 4`"


class _Method(SpecModel):
    method: str

    @property
    def virtual_tokens(self) -> int:
        """Positions of the model that the method uses."""
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
    """Low-rank changes added to the weights; also rsLoRA, DoRA and LoRA on quantised weights."""

    method: Literal["lora"] = "lora"
    r: Rank = Field(8, description="Rank.")
    lora_alpha: Scale = Field(8, description="The change is scaled by lora_alpha / r.")
    lora_dropout: float = Field(0.0, ge=0, lt=1)
    bias: Literal["none", "all", "lora_only"] = Field("none", description="Biases to train.")
    use_rslora: bool = Field(default=False, description="Scale by lora_alpha / √r instead.")
    use_dora: bool = Field(
        default=False, description="Train the magnitude of each weight separately."
    )
    lora_bias: bool = Field(default=False, description="The low-rank change has a bias as well.")
    init_lora_weights: Literal["gaussian", "orthogonal"] | Literal[True] = Field(
        default=True, description="How the change begins; each way it is zero."
    )
    layers_to_transform: Layers | None = Field(
        None, description="Only in the layers of these numbers."
    )
    rank_pattern: Annotated[dict[Pattern, Rank], FewLetters] = Field(
        default_factory=dict,
        max_length=MOST_ENTRIES,
        description="End of a module's name → its own r.",
    )
    alpha_pattern: Annotated[dict[Pattern, Scale], FewLetters] = Field(
        default_factory=dict, max_length=MOST_ENTRIES, description="The same for lora_alpha."
    )
    quantization: QuantizationSpec | None = Field(
        None, description="Load the base weights in 8 or 4 bits."
    )
    merge: bool = Field(
        default=False,
        description="Add the change to the base weights before the model is saved. Tied embeddings "
        "have weights of their own then, if the adapter changes one of them.",
    )

    @property
    def merges(self) -> bool:
        return self.merge

    @rule
    def _layers_need_names(self) -> Iterator[str]:
        if self.layers_to_transform is not None and isinstance(self.target_modules, str):
            yield (
                "`layers_to_transform` needs `target_modules` as a list of names: name the layers "
                "in the regular expression instead"
            )

    @rule
    def _merging_needs_exact_weights(self) -> Iterator[str]:
        if self.merge and self.quantization is not None:
            yield (
                "`merge` needs the base weights in full, and `quantization` rounds them: publish "
                "the adapter, and merge it into the unquantised model"
            )

    @rule
    def _dora_has_no_bias(self) -> Iterator[str]:
        if self.lora_bias and self.use_dora:
            yield "`lora_bias` and `use_dora` exclude each other"

    @rule
    def _orthogonal_ranks_are_even(self) -> Iterator[str]:
        ranks = (self.r, *self.rank_pattern.values())
        if self.init_lora_weights == "orthogonal" and any(rank % 2 for rank in ranks):
            yield "`init_lora_weights: orthogonal` needs even ranks in `r` and `rank_pattern`"


class IA3Spec(_Targeting):
    """(IA)³: one factor for each output of attention, and for each input of feed-forward."""

    method: Literal["ia3"] = "ia3"
    feedforward_modules: Modules | None = Field(
        None, description="Those of `target_modules` whose input is scaled, not their output."
    )

    @rule
    def _feedforward_is_targeted(self) -> Iterator[str]:
        targets, feedforward = self.target_modules, self.feedforward_modules
        if (targets is None) != (feedforward is None):
            yield "`target_modules` and `feedforward_modules` go together: give both"
        if isinstance(targets, list) and isinstance(feedforward, list):
            others = sorted(set(feedforward) - set(targets))
            if others:
                yield (
                    f"`feedforward_modules` names {', '.join(others)}, which `target_modules` "
                    "does not"
                )


class _Prompting(_Method):
    """A method that prepends trained virtual tokens."""

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

    @rule
    def _text_is_given_to_begin_with(self) -> Iterator[str]:
        if (self.prompt_tuning_init == "TEXT") != (self.prompt_tuning_init_text is not None):
            yield "`prompt_tuning_init: TEXT` and `prompt_tuning_init_text` go together"


class PrefixTuningSpec(_Prompting):
    """Trained keys and values before those of the text, in every layer."""

    method: Literal["prefix-tuning"] = "prefix-tuning"
    prefix_projection: bool = Field(default=False, description="Make them by a small network.")
    encoder_hidden_size: int | None = Field(
        None, ge=1, le=WIDEST, description="Its width; default: the model's."
    )
    init_weights: Literal["zero"] | None = Field(
        None, description="Default: at random; not with `prefix_projection`."
    )

    @rule
    def _only_a_projection_has_a_width(self) -> Iterator[str]:
        if self.encoder_hidden_size is not None and not self.prefix_projection:
            yield "`encoder_hidden_size` needs `prefix_projection`"

    @rule
    def _a_projection_is_not_zero(self) -> Iterator[str]:
        if self.init_weights is not None and self.prefix_projection:
            yield "`init_weights` and `prefix_projection` exclude each other"


PeftSpec = LoraSpec | IA3Spec | PromptTuningSpec | PrefixTuningSpec
