"""Cross entropy of a linear head without the logits of a whole batch.

A language model's logits are the largest tensor of its step: tokens x vocabulary in float32, with a
gradient of the same size. Here both are computed for a few tokens at a time, during the forward
pass. What is kept has the size of the hidden states and of the head's weight; an evaluation keeps
only a few numbers for each token.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch.nn import functional

from worker.training.fast_paths import FastPaths
from worker.training.kernels.equivalence_probe import PROBE_ERRORS, RTOL, probing, small_batch

IGNORED: Final = -100

_CHUNK_NUMBERS: Final = 7 << 20
"""Logits that exist at a time: 28 MiB in float32. They fit into a CPU cache of 32 MiB, and glibc's
malloc keeps blocks of this size, while it requests larger ones from the kernel each time."""
_CHUNKS_PER_PRODUCT: Final = 4
"""Chunks whose gradients are multiplied at once: adding up products of fewer rows is slower."""

_GPU_BYTES: Final = 1 << 30
_GPU_SHARE: Final = 32
"""On a GPU the logits of a chunk take this many bytes, or this share (1 / 32) of the free memory if
that is less: each chunk reads the head's weight three times, and there is no cache to fit into."""
_LOGIT_BYTES: Final = 8
"""Bytes for each logit: the product in 16 bits, its copy in float32, and the gradient in 16 bits;
in float32 there is no copy."""
_MIN_ROWS: Final = 64
"""Rows of a chunk on a GPU at least: one tile of its matrix units."""


class Chunks(NamedTuple):
    """How a batch is split into chunks of tokens."""

    rows: int
    """Tokens of a chunk."""
    per_product: int
    """Chunks whose gradients are multiplied at once."""

    @classmethod
    def for_vocabulary(cls, vocabulary: int, rows: int | None) -> "Chunks":
        """`rows`: what `choose_chunk_rows` returned."""
        if rows is None:
            return cls(max(1, _CHUNK_NUMBERS // vocabulary), _CHUNKS_PER_PRODUCT)
        return cls(rows, 1)

    def over(self, tokens: int) -> list[slice]:
        return self.within(slice(0, tokens))

    def within(self, span: slice) -> list[slice]:
        starts = range(span.start, span.stop, self.rows)
        return [slice(start, min(start + self.rows, span.stop)) for start in starts]


def choose_chunk_rows(
    linear: torch.nn.Linear, device: torch.device, paths: FastPaths
) -> int | None:
    """Tokens of a chunk on this GPU; None on a CPU, where the cache size decides.

    Another chunk size rounds the sums differently, so a resumed training keeps its own.
    """
    if device.type != "cuda":
        return None

    def measure() -> int | None:
        free, _total = torch.cuda.mem_get_info(device)
        # And what torch has reserved, but does not use.
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return chunk_rows_for(linear.out_features, free)

    return paths.choose("rows_of_loss", measure)


def chunk_rows_for(vocabulary: int, free: int) -> int:
    """A power of two, as is the number of tokens of most batches, so that no short chunk remains.
    `free`: bytes of the GPU's memory that are not in use."""
    fitting = min(_GPU_BYTES, free // _GPU_SHARE) // _LOGIT_BYTES // vocabulary
    return max(_MIN_ROWS, 1 << fitting.bit_length() >> 1)


PerToken = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]
"""(tokens, vocabulary) logits and (tokens,) labels → values for each token, (tokens,)."""


class HeadInput(NamedTuple):
    """The input of a model's head in one forward pass."""

    states: torch.Tensor
    """(batch, length, hidden)."""
    dtype: torch.dtype
    """The dtype that the head computes in: autocast's if that is on."""


class CaptureHeadInput:
    """While open, the head gets one token of each sequence only; its full input is in `head`."""

    def __init__(self, model: Any) -> None:
        self._module = model.get_output_embeddings()
        self.head: HeadInput | None = None

    def __enter__(self) -> "CaptureHeadInput":
        self._handle = self._module.register_forward_pre_hook(self._take)
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()

    def _take(self, module: Any, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        states = inputs[0]
        kind = states.device.type
        autocast = torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if autocast else module.weight.dtype
        self.head = HeadInput(states, dtype)
        return (states[:, :1],)


def head_input(model: Any, run: Callable[[], object]) -> HeadInput:
    """The input of the bare `model`'s head while `run` runs the model. The head must be the one
    that `plain_head` returned, or its replacement."""
    with CaptureHeadInput(model) as capture:
        run()
    assert capture.head is not None, "plain_head has tested this head"
    return capture.head


def current_head(model: Any, linear: torch.nn.Linear | None) -> torch.nn.Linear | None:
    """`linear`, if it is still the head of the bare `model`: an adapter may have replaced it after
    `plain_head` returned it."""
    return linear if model.get_output_embeddings() is linear else None


def loss_sum(
    linear: torch.nn.Linear,
    head: HeadInput,
    labels: torch.Tensor,
    smoothing: float = 0.0,
    rows: int | None = None,
) -> torch.Tensor:
    """Sum of `functional.cross_entropy` with `label_smoothing`, a float32 scalar.

    `labels`: (batch, length), one for each of `head.states`, IGNORED where there is none. `rows`:
    what `choose_chunk_rows` returned.
    """
    total: torch.Tensor = _ChunkedCrossEntropy.apply(
        head.states.flatten(0, 1),
        linear.weight,
        linear.bias,
        labels.flatten(),
        head.dtype,
        smoothing,
        rows,
    )
    return total


@torch.no_grad()
def map_chunks(
    linear: torch.nn.Linear,
    head: HeadInput,
    labels: torch.Tensor,
    per_token: PerToken,
    rows: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """The values of `per_token` for all tokens, computed chunk by chunk; each (batch, length).

    `labels` and `rows` are as for `loss_sum`.
    """
    weight, bias = _cast(linear.weight, linear.bias, head.dtype)
    states, flat = head.states.flatten(0, 1), labels.flatten()
    parts = [
        per_token(functional.linear(states[part].to(head.dtype), weight, bias), flat[part])
        for part in Chunks.for_vocabulary(len(weight), rows).over(len(states))
    ]
    return tuple(torch.cat(column).view(labels.shape) for column in zip(*parts, strict=True))


def _cast(
    weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None]:
    return weight.to(dtype), None if bias is None else bias.to(dtype)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        dtype: torch.dtype,
        smoothing: float,
        rows: int | None,
    ) -> torch.Tensor:
        by_states, by_weight, by_bias = _gradient_buffers(
            ctx.needs_input_grad, states, weight, bias
        )
        cast, added = _cast(weight, bias, dtype)
        total = torch.zeros((), device=states.device)
        sizes = Chunks.for_vocabulary(len(weight), rows)
        factors = cast.new_empty((min(len(states), sizes.rows * sizes.per_product), len(weight)))
        for group in Chunks(sizes.rows * sizes.per_product, 1).over(len(states)):
            narrow = states[group].to(dtype)
            for part in sizes.within(group):
                here = slice(part.start - group.start, part.stop - group.start)
                loss, by_logits = _chunk(narrow[here], cast, added, labels[part], smoothing)
                total += loss
                if by_bias is not None:
                    by_bias += by_logits.sum(dim=0)
                factors[here] = by_logits
            if by_states is not None:
                by_states[group] = factors[: len(narrow)] @ cast
            if by_weight is not None:
                add_product(by_weight, factors[: len(narrow)].T, narrow)
        by_weight, by_bias = _cast_like(by_weight, weight), _cast_like(by_bias, bias)
        ctx.save_for_backward(by_states, by_weight, by_bias)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        # New tensors: saved ones must not be changed.
        scaled = (None if one is None else one * gradient for one in ctx.saved_tensors)
        return *scaled, None, None, None, None


def _gradient_buffers(
    needed: tuple[bool, ...],
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Memory for the gradients that are needed. Sums over chunks are float32: in half precision
    each chunk would lose digits."""
    return (
        torch.empty_like(states) if needed[0] else None,
        torch.zeros_like(weight, dtype=torch.float32) if needed[1] else None,
        torch.zeros_like(bias, dtype=torch.float32) if needed[2] and bias is not None else None,
    )


def _cast_like(gradient: torch.Tensor | None, weight: torch.Tensor | None) -> torch.Tensor | None:
    return None if gradient is None or weight is None else gradient.to(weight.dtype)


def _chunk(
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    smoothing: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum of the losses of a few tokens, and its gradient with respect to their logits; float32."""
    logits = functional.linear(states, weight, bias).float()
    asked = (labels != IGNORED)[:, None]
    places = labels.clamp(min=0)[:, None]
    # In place: copying a tensor of this size costs as much as a step of the computation.
    highest = logits.amax(dim=-1, keepdim=True)
    losses = highest - (1 - smoothing) * logits.gather(1, places)
    if smoothing:
        losses -= smoothing * logits.mean(dim=-1, keepdim=True)
    exponentials = logits.sub_(highest).exp_()
    total = exponentials.sum(dim=-1, keepdim=True)
    losses += total.log()
    gradient = exponentials.div_(total)
    gradient.scatter_add_(1, places, gradient.new_full(places.shape, smoothing - 1))
    if smoothing:
        gradient -= smoothing / gradient.shape[1]
    return (losses * asked).sum(), gradient.mul_(asked)


def add_product(to: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> None:
    """Add the matrix product of `one` and `other` to `to`, which may have another dtype."""
    if to.dtype == one.dtype:
        to.addmm_(one, other)
    else:
        to += one @ other


@torch.no_grad()
def plain_head(model: Any) -> torch.nn.Linear | None:
    """The head of `model`, if its logits are exactly those of a plain linear layer; tested on a
    small batch."""
    linear = model.get_output_embeddings()
    if type(linear) is not torch.nn.Linear:
        return None
    with probing(model):
        try:
            # Without a mask: only the body handles padding and packing.
            ids = small_batch(model)["input_ids"]
            batch = {"input_ids": ids}
            if model.config.is_encoder_decoder:
                batch["decoder_input_ids"] = ids
            expected = model(**batch).logits
            with CaptureHeadInput(model) as capture:
                model(**batch)
            if capture.head is None:
                return None
            found = linear(capture.head.states)
        except PROBE_ERRORS:
            return None
    # This also holds for bfloat16 weights: the same product is rounded to the same numbers.
    same = found.shape == expected.shape and bool(
        (found.float() - expected.float()).abs().max() <= RTOL * expected.float().std()
    )
    return linear if same else None
