"""Trying a model out on a few short sequences, to see what it can do; it remains as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from worker.training import randomness

LENGTHS: Final = (3, 7, 5)

RTOL: Final = 1e-4
"""Of the outputs' spread, in float32: rounding gave up to 1.3e-5 (MiniLM, another attention), a
sequence that sees another gives 1e-3 and more."""

Refusal = (TypeError, ValueError, RuntimeError, LookupError, AssertionError, AttributeError)
"""What models raise that want more than tokens, or cannot take them so."""


@contextmanager
def tried_out(model: torch.nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode; no random number is drawn."""
    was_training = model.training
    model.eval()
    try:
        with randomness.preserved():
            yield
    finally:
        model.train(was_training)


def small_batch(model: Any) -> dict[str, torch.Tensor]:
    """`input_ids` and `attention_mask` of sequences of `LENGTHS`, padded on the right."""
    vocabulary = model.get_input_embeddings().num_embeddings
    device = next(model.parameters()).device
    lengths = torch.tensor(LENGTHS, device=device)[:, None]
    mask = (torch.arange(max(LENGTHS), device=device) < lengths).long()
    ids = torch.arange(2, 2 + mask.numel(), device=device) % vocabulary
    return {"input_ids": ids.view(mask.shape), "attention_mask": mask}
