"""Log-probabilities of tokens under a linear head, without the logits of a whole batch.

The losses of preferences are functions of sums of log-probabilities, so the gradient of each token
is known only in the backward pass. Where the head's weight is frozen, as with an adapter, the
gradient of each state is computed in the forward pass and scaled later. Otherwise the backward
pass computes the logits again, chunk by chunk.
"""

from typing import Any

import torch
from torch.nn import functional

from worker.training.loss.chunked_cross_entropy import IGNORED, Chunks, HeadInput, add_product


def of_labels(
    linear: torch.nn.Linear, head: HeadInput, labels: torch.Tensor, rows: int | None = None
) -> torch.Tensor:
    """The log-probability of each label, (tokens,) float32; 0 where it is IGNORED.

    `head.states`: (tokens, hidden), one for each label. `rows`: what `choose_chunk_rows` of
    `chunked_cross_entropy` returned.
    """
    found: torch.Tensor = _LabelLogProbs.apply(
        head.states, linear.weight, linear.bias, labels, head.dtype, rows, torch.is_grad_enabled()
    )
    return found


class _LabelLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        dtype: torch.dtype,
        rows: int | None,
        has_backward: bool,  # noqa: FBT001 - autograd takes positions only
    ) -> torch.Tensor:
        cast, added = weight.to(dtype), None if bias is None else bias.to(dtype)
        ctx.trains_head = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        scaled_later = has_backward and not ctx.trains_head
        by_states = torch.empty_like(states) if scaled_later else None
        found = torch.empty(len(states), device=states.device)
        totals = torch.empty_like(found)
        for part in Chunks.for_vocabulary(len(weight), rows).over(len(states)):
            logits = functional.linear(states[part].to(dtype), cast, added).float()
            totals[part] = logits.logsumexp(dim=-1)
            chosen = logits.gather(1, labels[part, None].clamp(min=0))[:, 0]
            found[part] = (chosen - totals[part]) * (labels[part] != IGNORED)
            if by_states is not None:
                by_states[part] = _by_logits(logits, totals[part], labels[part]).to(dtype) @ cast
        ctx.dtype, ctx.rows = dtype, rows
        if by_states is not None:
            ctx.save_for_backward(by_states)
        elif has_backward:
            ctx.save_for_backward(states, weight, bias, labels, totals)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if ctx.trains_head:
            return *_through_head(ctx, gradient), None, None, None, None
        (by_states,) = ctx.saved_tensors
        return by_states * gradient[:, None].to(by_states.dtype), *[None] * 6


def _through_head(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """The gradients of states, weight and bias, from logits that are computed again.

    Sums over chunks are float32: in half precision each chunk would lose digits.
    """
    states, weight, bias, labels, totals = ctx.saved_tensors
    cast, added = weight.to(ctx.dtype), None if bias is None else bias.to(ctx.dtype)
    by_states = torch.empty_like(states) if ctx.needs_input_grad[0] else None
    by_weight = torch.zeros_like(weight, dtype=torch.float32)
    by_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
    sizes = Chunks.for_vocabulary(len(weight), ctx.rows)
    factors = cast.new_empty((min(len(states), sizes.rows * sizes.per_product), len(weight)))
    for group in Chunks(sizes.rows * sizes.per_product, 1).over(len(states)):
        narrow = states[group].to(ctx.dtype)
        for part in sizes.within(group):
            here = slice(part.start - group.start, part.stop - group.start)
            logits = functional.linear(narrow[here], cast, added).float()
            by_logits = _by_logits(logits, totals[part], labels[part]).mul_(gradient[part, None])
            if by_bias is not None:
                by_bias += by_logits.sum(dim=0)
            factors[here] = by_logits
        if by_states is not None:
            by_states[group] = factors[: len(narrow)] @ cast
        add_product(by_weight, factors[: len(narrow)].T, narrow)
    return (
        by_states,
        by_weight.to(weight.dtype),
        None if by_bias is None else by_bias.to(bias.dtype),
    )


def _by_logits(logits: torch.Tensor, totals: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The gradient of the labels' log-probabilities, in the memory of `logits`."""
    asked = (labels != IGNORED)[:, None]
    gradient = logits.sub_(totals[:, None]).exp_().neg_()
    ones = gradient.new_ones(asked.shape)
    return gradient.scatter_add_(1, labels[:, None].clamp(min=0), ones).mul_(asked)
