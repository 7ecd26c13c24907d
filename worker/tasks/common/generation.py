"""Generating texts: batches that are padded on the left, and the tokens that follow each prompt."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from worker.tasks.base import PreparedSplit
from worker.tasks.common import predictions
from worker.tasks.common.padding import pad
from worker.tasks.common.predictions import PredictsOnly
from worker.training.objective import Batch, Evaluation, Features, Forward


class Generator:
    def __init__(self, tokenizer: Any, config: GenerationConfig) -> None:
        """`config` has a `pad_token_id`, for example that of `fill_token`."""
        self._tokenizer = tokenizer
        self._config = config

    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        """Pad on the left, since generation continues on the right."""
        rows = [feature["input_ids"] for feature in features]
        return {
            "input_ids": pad(rows, int(self._config.pad_token_id or 0), left=True),
            "attention_mask": pad([[1] * len(row) for row in rows], 0, left=True),
        }

    def texts(self, prompts: Features, forward: Forward) -> list[str]:
        """What is generated after each prompt, without special tokens and what follows the first
        token that ends a text."""
        texts = [""] * len(prompts)
        found = forward(prompts, self.collate, self._continue, generates=True)
        for indices, tokens in found:
            rows = [row[: first_end(row, self._config)] for row in tokens.tolist()]
            written = self._tokenizer.batch_decode(rows, skip_special_tokens=True)
            for index, text in zip(indices, written, strict=True):
                texts[index] = text
        return texts

    def _continue(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """(batch, new) tokens generated after the prompts."""
        generate: Any = model.generate
        whole: torch.Tensor = generate(**batch, generation_config=self._config)
        return whole[:, batch["input_ids"].shape[1] :]


class GenerationObjective(PredictsOnly):
    """Writes a text after the prompt of each row.

    `prompts_of`: the split's examples → what predictions show of each prompt.
    """

    def __init__(
        self,
        splits: Mapping[str, PreparedSplit],
        generator: Generator,
        prompts_of: Callable[[Any], Iterable[str]],
    ) -> None:
        self._splits = splits
        self._generator = generator
        self._prompts_of = prompts_of

    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        return self._generator.collate(features)

    def evaluate(self, split: str, forward: Forward, folder: Path) -> Evaluation | None:
        if split not in self._splits:
            return None
        data = self._splits[split]
        texts = self._generator.texts(data.features, forward)
        pairs = zip(self._prompts_of(data.examples), texts, strict=True)
        rows = [
            {"row": number, "prompt": prompt, "prediction": text}
            for number, (prompt, text) in enumerate(pairs, start=1)
        ]
        return Evaluation(
            {},
            predictions.write(rows, split, folder) | predictions.write_lines(texts, split, folder),
            predictions.samples(rows, data.examples),
        )


def end_tokens(config: GenerationConfig) -> Collection[int]:
    """The tokens that end a text: the config has one, several or none."""
    given: int | Sequence[int] | None = config.eos_token_id
    if given is None:
        return ()
    return (given,) if isinstance(given, int) else tuple(given)


def first_end(tokens: Sequence[int], config: GenerationConfig, start: int = 0) -> int:
    """The place of the first token, not before `start`, that ends a text; without one their number.

    What follows it is not text, whatever its tokens are: `generate` fills the rows of finished
    texts with the pad token, and with the end token after a beam search if the pad token's id is 0.
    """
    ends = end_tokens(config)
    places = range(start, len(tokens))
    return next((place for place in places if tokens[place] in ends), len(tokens))


def fill_token(tokenizer: Any) -> int:
    """Any token id: the attention mask hides padding."""
    candidates = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return int(next(number for number in candidates if number is not None))
