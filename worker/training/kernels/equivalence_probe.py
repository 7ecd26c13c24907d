"""Running a model on a few short sequences to find out what it supports, without changing it."""

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from worker.training.objective import Features
from worker.training.reproducibility import rng

LENGTHS: Final = (3, 7, 5)
_THREE_BATCHES: Final = (LENGTHS, (12, 5, 9), (16, 25, 20))
_LAYERS: Final = 2
_KINDS: Final = 4
"""A list with a value for each layer names kinds of layers if it has at most so many values."""
_VOCABULARY: Final = 1024
_SHORT: Final = 2
"""Windows and the like in a small model: each of `LENGTHS` is longer, and two more than twice."""
_BY_LENGTH: Final = re.compile(
    "(?!.*(layer|pattern|expert|num_|feed_forward))"
    ".*(window|chunk|stride|block|floor|local_attention|local_radius|index_topk|compress)"
)
"""Settings of a model that act on rows beyond some length only."""

RTOL: Final = 1e-4
"""Tolerance relative to the outputs' standard deviation, in float32: rounding gave up to 1.3e-5
(MiniLM, another attention), a sequence that attends to another gives 1e-3 and more."""

PROBE_ERRORS = (TypeError, ValueError, RuntimeError, LookupError, AssertionError, AttributeError)
"""What models raise that need more than tokens, or do not accept them in this form."""


_probing = False


@contextmanager
def probing(model: torch.nn.Module) -> Iterator[None]:
    """While open, the model is in evaluation mode, and our attention refuses what it would drop;
    the random state is restored at the end."""
    global _probing  # the attention knows the module and its numbers only
    was_training, before = model.training, _probing
    model.eval()
    _probing = True
    try:
        with rng.preserved():
            yield
    finally:
        _probing = before
        model.train(was_training)


def is_probing() -> bool:
    return _probing


def small_batch(model: Any) -> dict[str, torch.Tensor]:
    """`input_ids` and `attention_mask` of sequences of `LENGTHS`, padded on the right."""
    vocabulary = model.get_input_embeddings().num_embeddings
    device = next(model.parameters()).device
    lengths = torch.tensor(LENGTHS, device=device)[:, None]
    mask = (torch.arange(max(LENGTHS), device=device) < lengths).long()
    ids = (torch.arange(2, 2 + mask.numel(), device=device) % vocabulary).view(mask.shape)
    # Classifiers on decoders find the last token by the ids, not by the mask.
    padded = ids.masked_fill(mask == 0, _padding(model, vocabulary))
    return {"input_ids": padded, "attention_mask": mask}


def _padding(model: Any, vocabulary: int) -> int:
    pad = getattr(model.config, "pad_token_id", None)
    return int(pad) if isinstance(pad, int) and 0 <= pad < vocabulary else 0


def small_model(model: Any, device: torch.device) -> Any:
    """A small model of the same class and shape in float32 on `device`, in evaluation mode.

    It has a small vocabulary, as few layers as include each kind of layer (at least two), windows,
    chunks, strides and blocks that are shorter than the probe's rows, and random weights that are
    always the same. It is quick to create, and a path that agrees on it agrees on the whole model.
    """
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    for name, value in _shorter(config).items():
        setattr(config, name, value)
    layers, kept = config.num_hidden_layers, _layers_of_each_kind(config)
    for name, value in vars(config).items():
        if isinstance(value, list) and len(value) == layers:
            setattr(config, name, value[:kept])
    config.num_hidden_layers = kept
    config.vocab_size = min(config.vocab_size, _VOCABULARY)
    pad = getattr(config, "pad_token_id", None)
    if pad is not None and pad >= config.vocab_size:
        config.pad_token_id = config.vocab_size - 1
    with rng.preserved(), device:
        torch.manual_seed(0)
        made: Any = type(model)(config)
        sharpen(made)
    return made.to(device, torch.float32).eval()


@torch.no_grad()
def sharpen(model: Any) -> None:
    """Initial weights are so small that attention hardly affects the outputs: enlarge them."""
    embeddings = model.get_input_embeddings().weight
    for weight in model.parameters():
        if weight.dim() == 2 and weight is not embeddings:
            weight.normal_(std=weight.shape[1] ** -0.5)


def _layers_of_each_kind(config: Any) -> int:
    """By `layer_types` and lists like it: Llama 4 has positions in some layers only."""
    layers = config.num_hidden_layers
    lists = [each for each in vars(config).values() if isinstance(each, list)]
    kinds = [each for each in lists if len(each) == layers and len(set(map(str, each))) <= _KINDS]
    firsts = [each.index(kind) + 1 for each in kinds for kind in each]
    return int(min(layers, max([_LAYERS, *firsts])))


def depends_on_length(model: Any) -> bool:
    """Whether the model has settings that the probe's rows are too short for; `small_model` has
    none."""
    return bool(_shorter(model.config))


def _shorter(config: Any) -> dict[str, Any]:
    """The settings that act beyond some length only, so short that they act on the probe."""
    settings = vars(config).items()
    short = {name: _shortened(name, value) for name, value in settings}
    return {name: short[name] for name, value in settings if short[name] != value}


def _shortened(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_shortened(name, each) for each in value]
    if isinstance(value, dict):
        return {key: _shortened(f"{name}.{key}", each) for key, each in value.items()}
    is_length = type(value) is int and _BY_LENGTH.match(name)
    return min(value, _SHORT) if is_length else value


def short_batches(model: Any, features: Features) -> list[dict[str, torch.Tensor]]:
    """Three batches of a job's own tokens on the CPU, each of three sequences of different lengths,
    padded on the right; of made-up tokens if the job has none."""
    vocabulary = model.get_input_embeddings().num_embeddings
    batches = []
    for number, lengths in enumerate(_THREE_BATCHES):
        size = max(lengths)
        ids = torch.full((len(lengths), size), _padding(model, vocabulary))
        mask = torch.zeros_like(ids)
        for row, length in enumerate(lengths):
            tokens = _tokens(features, number * len(lengths) + row)
            repeated = torch.tensor(tokens).repeat(-(-length // len(tokens)))
            ids[row, :length] = repeated[:length] % vocabulary
            mask[row, :length] = 1
        batches.append({"input_ids": ids, "attention_mask": mask})
    return batches


def _tokens(features: Features, index: int) -> list[int]:
    found = list(features[index % len(features)]["input_ids"]) if len(features) else []
    return found or [2 + index, 3 + index, 5 + index]
