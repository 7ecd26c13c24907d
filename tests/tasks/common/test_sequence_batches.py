"""worker.tasks.common.sequence_batches: packed features become rows, and shares of a batch."""

from typing import Any

import torch

from worker.tasks.common import sequence_batches
from worker.training.objective import SEQUENCES, BatchSize, shape_of

PACKED: list[dict[str, Any]] = [
    {"input_ids": [5, 6, 7, 8, 9], "trained": [1, 0, 1, 1, 0], "lengths": [3, 2]},
    {"input_ids": [3, 4, 2, 1], "trained": [1, 1, 1, 1], "lengths": [4]},
]


class TestCollate:
    def test_packed_features(self) -> None:
        batch = sequence_batches.collate(PACKED, fill=0)
        assert batch["input_ids"].tolist() == [[5, 6, 7, 0], [8, 9, 0, 0], [3, 4, 2, 1]]
        assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
        ignored = -100
        assert batch["labels"].tolist() == [
            [5, ignored, 7, ignored],
            [8, ignored, ignored, ignored],
            [3, 4, 2, 1],
        ]
        assert batch[SEQUENCES].tolist() == [2, 1]
        # Those before 7, 4, 2 and 1; the first other real token fills up a shape that repeats.
        assert batch["places"].tolist() == [0, 0, 0, 0, 1, 8, 9, 10]

    def test_a_feature_of_one_sequence(self) -> None:
        batch = sequence_batches.collate([{"input_ids": [7, 8]}, {"input_ids": [9]}], fill=3)
        assert batch["input_ids"].tolist() == [[7, 8], [9, 3]]
        assert batch["labels"].tolist() == [[7, 8], [9, -100]]
        assert SEQUENCES not in batch

    def test_its_size(self) -> None:
        packed = sequence_batches.collate(PACKED, fill=0)
        assert BatchSize.from_batch(packed) == (2, 9, 9)
        assert shape_of(packed) == (2, 5)
        each = [{"input_ids": [1, 2]}, {"input_ids": [3]}]
        assert BatchSize.from_batch(sequence_batches.collate(each, fill=0)) == (2, 3, 4)
        assert shape_of(sequence_batches.collate(each, fill=0)) == (2, 2)


def test_the_first_features_of_a_batch() -> None:
    whole = sequence_batches.collate(PACKED, fill=0)
    cut = sequence_batches.first_examples(whole, 1)
    expected = sequence_batches.collate(PACKED[:1], fill=0)
    assert cut["input_ids"].tolist() == [[5, 6, 7, 0], [8, 9, 0, 0]]
    assert cut[SEQUENCES].tolist() == [2]
    labels = torch.nn.functional.pad(cut["labels"][:, 1:], (0, 1), value=-100).flatten()
    assert labels[cut["places"]][labels[cut["places"]] != -100].tolist() == [7]
    assert expected["labels"].tolist() == [row[:3] for row in cut["labels"].tolist()]
    assert all(len(cut[name]) == 2 for name in ("attention_mask", "labels"))
