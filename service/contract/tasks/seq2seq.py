"""The parameters of summarization and translation: what is read, written and generated."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from service.contract.fields import patterns
from service.contract.fields.bounds import LARGEST, MOST_TOKENS
from service.contract.fields.section import SpecModel, rule
from service.contract.fields.types import TaskParametersModel, Text

Prefix = Annotated[str, StringConstraints(max_length=4096, pattern=patterns.NO_NUL)]


class GenerationSpec(SpecModel):
    """How texts are generated; names and meanings of `transformers.GenerationConfig`.

    Options left out are those of the model's own generation config.
    """

    min_length: int | None = Field(
        None, ge=0, le=MOST_TOKENS, description="Tokens of the shortest output."
    )
    min_new_tokens: int | None = Field(
        None, ge=0, le=MOST_TOKENS, description="The same, without the decoder's start token."
    )
    early_stopping: bool | Literal["never"] | None = Field(
        None, description="true: beam search ends with `num_beams` finished candidates."
    )
    length_penalty: float | None = Field(
        None, ge=-LARGEST, le=LARGEST, description="Beam search: above 0 prefers longer outputs."
    )
    no_repeat_ngram_size: int | None = Field(
        None, ge=0, le=MOST_TOKENS, description="No n-gram of this size occurs twice; 0: off."
    )
    encoder_no_repeat_ngram_size: int | None = Field(
        None,
        ge=0,
        le=MOST_TOKENS,
        description="No n-gram of this size is taken from the source; 0: off.",
    )
    repetition_penalty: float | None = Field(None, gt=0, le=LARGEST)
    encoder_repetition_penalty: float | None = Field(None, gt=0, le=LARGEST)
    do_sample: bool | None = Field(
        None, description="Draw tokens at random; the draws follow from `training.seed`."
    )
    temperature: float | None = Field(None, gt=0, le=LARGEST, description="Of sampling.")
    top_k: int | None = Field(
        None, ge=0, le=MOST_TOKENS, description="Sampling: the likeliest k; 0: all."
    )
    top_p: float | None = Field(
        None, gt=0, le=1, description="Sampling: the likeliest tokens up to this probability."
    )


class Seq2SeqSpec(TaskParametersModel):
    max_source_length: int = Field(
        1024, ge=2, le=MOST_TOKENS, description="Tokens of a source; longer ones are cut."
    )
    max_target_length: int = Field(
        128, ge=2, le=MOST_TOKENS, description="Tokens of a training target; longer ones are cut."
    )
    val_max_target_length: int | None = Field(
        None,
        ge=2,
        le=MOST_TOKENS,
        description="The same for evaluation; default: `max_target_length`.",
    )
    generation_max_length: int | None = Field(
        None,
        ge=2,
        le=MOST_TOKENS,
        description="Tokens of the longest generated text; default: `val_max_target_length`.",
    )
    num_beams: int | None = Field(
        None, ge=1, le=64, description="Of beam search; default: that of the model's config."
    )
    source_prefix: Prefix = Field("", description="Put before every source, as T5 expects it.")
    ignore_pad_token_for_loss: bool = Field(
        default=True, description="false: the padding of targets counts in the loss."
    )
    predict_with_generate: bool = Field(
        default=True,
        description="Generate in evaluations and score the texts; false: the loss only.",
    )
    forced_bos_token: Text | None = Field(
        None,
        description="First token of every generated text: the target language for mBART-50, "
        "M2M100 and NLLB.",
    )
    generation: GenerationSpec = Field(default_factory=GenerationSpec)

    @rule
    def _lengths_fit(self) -> Iterator[str]:
        longest = self.generated_length()
        for name in ("min_length", "min_new_tokens"):
            shortest = getattr(self.generation, name)
            if shortest is not None and shortest > longest:
                yield (
                    f"`generation.{name}` ({shortest}) is above the longest generated text "
                    f"({longest} tokens)"
                )

    def target_length(self, split: str) -> int:
        """Tokens at which targets of `split` are cut."""
        if split == "train" or self.val_max_target_length is None:
            return self.max_target_length
        return self.val_max_target_length

    def generated_length(self) -> int:
        """Tokens of the longest generated text, the decoder's start token included."""
        if self.generation_max_length is None:
            return self.target_length("validation")
        return self.generation_max_length


class SummarizationSpec(Seq2SeqSpec):
    """A long text → a short one, with a sequence-to-sequence model."""

    type: Literal["summarization"] = "summarization"
    lang: Text | None = Field(
        None, description="Language code, for tokenizers that have such (mBART, NLLB, …)."
    )
    text_column: Text | None = Field(
        None, description="Your column with the texts; the same as `dataset.columns.text`."
    )
    summary_column: Text | None = Field(
        None, description="Your column with the summaries; likewise."
    )

    def named_columns(self) -> dict[str, str]:
        given = {"text": self.text_column, "summary": self.summary_column}
        return {column: theirs for column, theirs in given.items() if theirs is not None}


class TranslationSpec(Seq2SeqSpec):
    """A text → the same in another language, with a sequence-to-sequence model."""

    type: Literal["translation"] = "translation"
    source_lang: Text | None = Field(
        None,
        description="Language code of the sources: for tokenizers that have such (mBART, NLLB, …) "
        'and for rows like {"translation": {"en": …, "ro": …}}.',
    )
    target_lang: Text | None = Field(None, description="Language code of the targets.")
