"""Batches of whole sequences, each a row of its own: from features of one sequence or of several.

Padding-free hooks (`worker.training.kernels.padding_free`) make one row of a batch again, where the
positions restart with each sequence. Without them the batch stays padded. No sequence sees another
on either path.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from worker.tasks.common.padding import pad
from worker.tasks.common.token_scores import IGNORED
from worker.training.kernels import selective_head
from worker.training.objective import SEQUENCES, Batch


def collate(features: Sequence[Mapping[str, Any]], fill: int) -> Batch:
    """Pad on the right: `input_ids`, filled with `fill`, `attention_mask`, and `labels`, the tokens
    themselves, not shifted.

    Features have `input_ids`; `trained`, 1 for each token that is a label, else all of them are;
    `lengths`, those of the sequences that are packed into it, else it is one. `places`: the
    flattened places of the tokens whose next token is a label, and a few others. `SEQUENCES`: how
    many rows each feature has, if they are packed.
    """
    lengths = [each.get("lengths") or [len(each["input_ids"])] for each in features]
    ids = _rows(features, lengths, "input_ids")
    rows = [np.ones(len(row), dtype=np.int64) for row in ids]
    trained = _rows(features, lengths, "trained") if "trained" in features[0] else rows
    batch = {"input_ids": pad(ids, fill), "attention_mask": pad(rows, 0)}
    is_label = pad(trained, 0).bool()
    batch["labels"] = batch["input_ids"].masked_fill(~is_label, IGNORED)
    wanted = following(batch) != IGNORED
    unwanted = ~wanted & batch["attention_mask"].bool()
    batch["places"] = selective_head.positions_of(wanted, unwanted)
    if "lengths" in features[0]:
        batch[SEQUENCES] = torch.tensor([len(each) for each in lengths])
    return batch


def _rows(
    features: Sequence[Mapping[str, Any]], lengths: Sequence[Sequence[int]], name: str
) -> list[Any]:
    """The part of each sequence."""
    return [
        part
        for feature, sizes in zip(features, lengths, strict=True)
        for part in np.split(np.asarray(feature[name], dtype=np.int64), np.cumsum(sizes)[:-1])
    ]


def following(batch: Batch) -> torch.Tensor:
    """(batch, length) the token that follows each; IGNORED if that is not a label."""
    return functional.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED)


def first_examples(batch: Batch, examples: int) -> Batch:
    """The rows of the first `examples` features of a batch, padded like the whole."""
    counts = batch.get(SEQUENCES)
    rows = examples if counts is None else int(counts[:examples].sum())
    cut = {name: value[:rows] for name, value in batch.items() if name not in {SEQUENCES, "places"}}
    if counts is not None:
        cut[SEQUENCES] = counts[:examples]
    if "places" in batch:
        cut["places"] = selective_head.before(batch["places"], cut["labels"].numel())
    return cut
