"""The order of the examples in an epoch: a pure function of seed, epoch and lengths."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import datasets
import numpy as np
import pyarrow.compute
from transformers.trainer_pt_utils import get_length_grouped_indices

from service.contract.training_arguments.choices import Sampling
from worker.training import rng
from worker.training.objective import Features, ViewOfFeatures
from worker.training.plan import Plan

Order = Callable[[int], Sequence[int]]
"""Epoch → indices of the training features."""


def order(features: Features, plan: Plan) -> Order:
    """The order that `train_sampling_strategy` names, over the examples of all processes."""
    spec = plan.spec
    seed = spec.seed if spec.data_seed is None else spec.data_seed
    return STRATEGIES[spec.train_sampling_strategy](features, seed, plan)


def _random(features: Features, seed: int, _plan: Plan) -> Order:
    return partial(rng.shuffled, len(features), seed)


def _sequential(features: Features, _seed: int, _plan: Plan) -> Order:
    return lambda _epoch: range(len(features))


def _group_by_length(features: Features, seed: int, plan: Plan) -> Order:
    """Random, with similar lengths in each large batch; the longest example comes first."""
    size = plan.batch_size * plan.spec.gradient_accumulation_steps
    counted = lengths(features).tolist()

    def grouped(epoch: int) -> list[int]:
        indices: list[int] = get_length_grouped_indices(
            counted, size, generator=rng.generator(seed, epoch)
        )
        return indices

    return grouped


STRATEGIES: Final[dict[Sampling, Callable[[Features, int, Plan], Order]]] = {
    "random": _random,
    "sequential": _sequential,
    "group_by_length": _group_by_length,
}


def lengths(features: Features) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Tokens of each feature; for Arrow data from the offsets, without decoding."""
    if isinstance(features, ViewOfFeatures):
        features = features.viewed
    if isinstance(features, datasets.Dataset):
        tokens = features.with_format("arrow").select_columns(["input_ids"])[:]["input_ids"]
        return np.asarray(pyarrow.compute.list_value_length(tokens), dtype=np.int64)
    return np.array([len(feature["input_ids"]) for feature in features], dtype=np.int64)
