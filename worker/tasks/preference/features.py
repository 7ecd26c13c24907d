"""Features of preferences: the sequences that are compared, one after another.

`input_ids` and `trained`: of all sequences; `lengths`: how many tokens each has. Of a pair these
are the chosen and the rejected answer with their prompt, and `margin` what rewards subtract from
the difference of theirs, or None.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from service.contract.spec.splits import TRAIN
from worker.tasks import describe
from worker.tasks.base import PrepareContext
from worker.tasks.chat import lengths, templates
from worker.tasks.common import feature_file
from worker.tasks.describe import Describer
from worker.tasks.preference.tokenizing import joined_notice

FORMAT_VERSION: Final = 1  # of the features; a new version prepares data again
MARGIN: Final = "margin"
DESIRABLE: Final = "desirable"
"""Whether a single answer is a good one."""


def example_schema(cleaned: Mapping[str, Any]) -> Any:
    """The columns of cleaned rows with their tokens."""
    from datasets import Features, List, Value

    tokens = {"input_ids": List(List(Value("int32"))), "start": Value("int32")}
    return Features({**cleaned, **tokens})


def answers_in_words(describer: Describer, feature: Mapping[str, Any]) -> str:
    """The answers that are compared; of KTO's features the one that is learned from."""
    ends = list(accumulate(feature["lengths"]))
    texts = []
    for begin, end in pairwise([0, *ends]):
        part = {name: feature[name][begin:end] for name in ("input_ids", "trained")}
        texts.append(describe.trained_text(describer, part).removeprefix("text: "))
    if DESIRABLE in feature:
        return f"{'good' if feature[DESIRABLE] else 'bad'} answer: {texts[0]}"
    return f"chosen: {texts[0]}; rejected: {texts[1]}"


def schema() -> dict[str, Any]:
    from datasets import List, Value

    return {
        "input_ids": List(Value("int32")),
        "trained": List(Value("bool")),
        "lengths": List(Value("int32")),
    }


def write_pairs(split: str, examples: Any, context: PrepareContext, target: Path) -> int:
    """One feature for each row, whose answers are cut to `context.max_length` tokens."""
    report_how_joined(split, examples, context)
    cut = Cut(split, context)
    further = {name: kind for name, kind in examples.features.items() if name == MARGIN}

    def columns(_first: int, rows: Mapping[str, Any]) -> Mapping[str, Any]:
        pairs = zip(rows["input_ids"], rows["start"], strict=True)
        made = joined([cut.row(answers, start) for answers, start in pairs])
        return made | {name: rows[name] for name in further}

    count = feature_file.write(examples, columns, schema() | further, context, target)
    cut.report()
    return count


def report_how_joined(split: str, examples: Any, context: PrepareContext) -> None:
    """Reports whether a chat template writes prompts and answers, or they are joined as they
    are."""
    if split == TRAIN or not context.spec.trains:
        template = getattr(context.spec.task, "chat_template", None)
        forms = examples.unique("form")
        notice = joined_notice(context.tokenizer, template, forms)
        if notice is not None:
            context.notice(notice)
        else:
            templates.infer(context.tokenizer, template, context.inferences)


Part = tuple[npt.NDArray[np.int32], int]
"""The tokens of a sequence, and where its answer starts."""


def joined(features: Sequence[Sequence[Part]]) -> dict[str, Any]:
    """The columns of features, each of some sequences."""
    return {
        "input_ids": [np.concatenate([ids for ids, _ in parts]) for parts in features],
        "trained": [
            np.concatenate([np.arange(len(ids)) >= start for ids, start in parts])
            for parts in features
        ],
        "lengths": [[len(ids) for ids, _ in parts] for parts in features],
    }


class Cut:
    """Cuts sequences at their end, counts the cuts, and reports them. A row is as long as the
    longest of its answers with their prompt.

    Those of the training split are cut to `task.max_length`, or to what nearly all of them need.
    Without the option the others are cut at the model's limit only, since an evaluation needs less
    memory, so that each of their answers keeps a token.
    """

    def __init__(self, split: str, context: PrepareContext) -> None:
        self._split, self._context = split, context
        self._is_chosen = split == TRAIN and getattr(context.spec.task, "max_length", None) is None
        self._length = context.max_length
        self._rows = self._lost = 0
        if self._is_chosen:
            self._tokens, needed = _sizes(context.train_examples)
            self._length = min(lengths.chosen(self._tokens, needed), context.max_length)

    def row(self, answers: Sequence[Sequence[int]], start: int) -> list[Part]:
        """The answers of a row with their prompt, which are counted."""
        sizes = [len(ids) for ids in answers]
        is_cut = max(sizes) > self._length
        self._context.measures.tokens.add([max(sizes)], int(is_cut))
        self._rows += is_cut
        self._lost += sum(max(size - self._length, 0) for size in sizes)
        return [self.part(ids, start) for ids in answers]

    def part(self, ids: Sequence[int], start: int) -> Part:
        """A sequence, which is not counted."""
        return np.asarray(ids[: self._length], dtype=np.int32), start

    def report(self) -> None:
        cut = lengths.Cut(self._rows, self._lost, self._lost)
        self._context.counts.update(
            truncated_rows=cut.rows, dropped_tokens=cut.tokens, max_length=self._length
        )
        if self._is_chosen:
            self._context.notice(lengths.choice_notice(self._tokens, self._length, cut))
        elif cut.rows:
            self._context.notice(lengths.cut_notice(self._split, self._length, cut))


def _sizes(examples: Any) -> tuple[lengths.Counts, lengths.Counts]:
    """The tokens of each row, and those up to the first token of its answers."""
    table = examples.with_format("arrow").select_columns(["input_ids", "start"])[:]
    counts = pc.list_value_length(table["input_ids"]).to_numpy()
    answers = pc.list_value_length(pc.list_flatten(table["input_ids"])).to_numpy()
    longest = np.maximum.reduceat(answers, np.cumsum(counts) - counts)
    return longest.astype(np.int64), table["start"].to_numpy().astype(np.int64) + 1
