"""The order of the examples in an epoch: a pure function of seed, epoch and lengths."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import datasets
import numpy as np
import pyarrow.compute
from transformers.trainer_pt_utils import get_length_grouped_indices

from worker.training.objective import Features, ViewOfFeatures
from worker.training.plan import Plan
from worker.training.reproducibility import rng

Order = Callable[[int], Sequence[int]]
"""Epoch → indices of the training features."""


def order(features: Features, plan: Plan) -> Order:
    """The order that `train_sampling_strategy` names, over the examples of all processes."""
    spec = plan.spec
    if spec.train_sampling_strategy == "sequential":
        return lambda _epoch: range(len(features))
    seed = spec.seed if spec.data_seed is None else spec.data_seed
    if spec.train_sampling_strategy == "random":
        return partial(rng.shuffled, len(features), seed)
    size = plan.batch_size * spec.gradient_accumulation_steps
    counted = lengths(features).tolist()

    def grouped(epoch: int) -> list[int]:
        """Random, with similar lengths in each large batch; the longest example comes first."""
        indices: list[int] = get_length_grouped_indices(
            counted, size, generator=rng.generator(seed, epoch)
        )
        return indices

    return grouped


def lengths(features: Features) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Tokens of each feature; for Arrow data from the offsets, without decoding."""
    if isinstance(features, ViewOfFeatures):
        features = features.viewed
    if isinstance(features, datasets.Dataset):
        tokens = features.with_format("arrow").select_columns(["input_ids"])[:]["input_ids"]
        return np.asarray(pyarrow.compute.list_value_length(tokens), dtype=np.int64)
    return np.array([len(feature["input_ids"]) for feature in features], dtype=np.int64)
