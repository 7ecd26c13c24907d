"""Cross entropy of a linear head without the logits of a whole batch.

A language model's logits are the largest tensor of its step: tokens x vocabulary in float32, with a
gradient as large. Here both are made for a few tokens at a time, in the forward pass already; what
is kept has the size of the hidden states and of the head's weight. Of an evaluation there remain a
few numbers for each token.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch.nn import functional

from worker.training.fast_paths import FastPaths
from worker.training.kernels.equivalence_probe import RTOL, Refusal, small_batch, tried_out

IGNORED: Final = -100

_NUMBERS: Final = 7 << 20
"""Of the logits that there are at a time: 28 MiB in float32. They stay in the cache of a processor
that has 32, and glibc's malloc, which asks the kernel for larger ones each time, keeps them."""
_TOGETHER: Final = 4
"""Parts whose gradients make one product: of fewer rows it takes longer to add it up."""

_GPU_BYTES: Final = 1 << 30
_GPU_SHARE: Final = 32
"""On a GPU a part has logits of so many bytes, or of one in so many of those that are free: each
part reads the head's weight three times, and there is no cache to stay in."""
_LOGIT_BYTES: Final = 8
"""Of memory for each: in 16 bits the product, its copy in float32, and the gradient in 16 bits; in
float32 there is no copy."""
_FEWEST_ROWS: Final = 64
"""Of a part on a GPU: a tile of its matrix units."""


class Parts(NamedTuple):
    """How many tokens' logits there are at a time."""

    rows: int
    """Tokens of a part."""
    together: int
    """Parts whose gradients make one product."""

    @classmethod
    def of(cls, vocabulary: int, rows: int | None) -> "Parts":
        """`rows` as `rows_of_parts` has chosen them."""
        if rows is None:
            return cls(max(1, _NUMBERS // vocabulary), _TOGETHER)
        return cls(rows, 1)

    def over(self, tokens: int) -> list[slice]:
        return self.within(slice(0, tokens))

    def within(self, span: slice) -> list[slice]:
        starts = range(span.start, span.stop, self.rows)
        return [slice(start, min(start + self.rows, span.stop)) for start in starts]


def rows_of_parts(linear: torch.nn.Linear, device: torch.device, paths: FastPaths) -> int | None:
    """Tokens whose logits are made together on this GPU; None on a processor, whose cache says it.

    Sums of other parts are rounded otherwise, so that a resumed training keeps its own. One that
    was begun where nothing was chosen, on a CPU or by an older release, keeps small parts.
    """
    if device.type != "cuda":
        return None

    def measure() -> int | None:
        return rows_for(linear.out_features, _free_bytes(device))

    return paths.choose("rows_of_loss", measure, before=None)


def rows_for(vocabulary: int, free: int) -> int:
    """A power of two, as the tokens of most batches are: no short part is left. `free`: bytes of
    the GPU's memory that nobody has."""
    fitting = min(_GPU_BYTES, free // _GPU_SHARE) // _LOGIT_BYTES // vocabulary
    return max(_FEWEST_ROWS, 1 << fitting.bit_length() >> 1)


def _free_bytes(device: torch.device) -> int:
    """Of a GPU: what the driver has, and what torch holds for tensors to come."""
    free, _total = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


Judge = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]
"""(tokens, vocabulary) logits and (tokens,) labels to numbers of each token, (tokens,)."""


class Head(NamedTuple):
    """What a model's head was given in one forward pass."""

    states: torch.Tensor
    """(batch, length, hidden)."""
    dtype: torch.dtype
    """That its products are made in: autocast's where that is on."""


class Capture:
    """Inside, the head sees one token of each sequence, and what it was given is in `head`."""

    def __init__(self, model: Any) -> None:
        self._module = model.get_output_embeddings()
        self.head: Head | None = None

    def __enter__(self) -> "Capture":
        self._handle = self._module.register_forward_pre_hook(self._take)
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()

    def _take(self, module: Any, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        states = inputs[0]
        kind = states.device.type
        autocast = torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if autocast else module.weight.dtype
        self.head = Head(states, dtype)
        return (states[:, :1],)


def seen_by_head(model: Any, run: Callable[[], object]) -> Head:
    """What the head of the bare `model` is given while `run` runs it; a head that `linear_of`
    found, or one in its place."""
    with Capture(model) as capture:
        run()
    assert capture.head is not None, "tried out when the job was loaded"
    return capture.head


def standing(model: Any, linear: torch.nn.Linear | None) -> torch.nn.Linear | None:
    """`linear`, if it still is the head of the bare `model`: an adapter may have taken its place
    since `linear_of` found it."""
    return linear if model.get_output_embeddings() is linear else None


def loss_sum(
    linear: torch.nn.Linear,
    head: Head,
    labels: torch.Tensor,
    smoothing: float = 0.0,
    rows: int | None = None,
) -> torch.Tensor:
    """Sum of what `functional.cross_entropy` with `label_smoothing` gives, a float32 scalar.

    `labels`: (batch, length), those of `head.states`, IGNORED where nothing is asked for. `rows` as
    `rows_of_parts` has chosen them.
    """
    total: torch.Tensor = _LinearLoss.apply(
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
def in_parts(
    linear: torch.nn.Linear,
    head: Head,
    labels: torch.Tensor,
    judge: Judge,
    rows: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """What `judge` makes of the logits, asked for a few tokens at a time; each (batch, length) as
    `labels`, which with `rows` are as for `loss_sum`."""
    weight, bias = _cast(linear.weight, linear.bias, head.dtype)
    states, flat = head.states.flatten(0, 1), labels.flatten()
    parts = [
        judge(functional.linear(states[part].to(head.dtype), weight, bias), flat[part])
        for part in Parts.of(len(weight), rows).over(len(states))
    ]
    return tuple(torch.cat(column).view(labels.shape) for column in zip(*parts, strict=True))


def _cast(
    weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None]:
    return weight.to(dtype), None if bias is None else bias.to(dtype)


class _LinearLoss(torch.autograd.Function):
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
        by_states, by_weight, by_bias = _room(ctx.needs_input_grad, states, weight, bias)
        cast, added = _cast(weight, bias, dtype)
        total = torch.zeros((), device=states.device)
        sizes = Parts.of(len(weight), rows)
        factors = cast.new_empty((min(len(states), sizes.rows * sizes.together), len(weight)))
        for group in Parts(sizes.rows * sizes.together, 1).over(len(states)):
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
                _add_product(by_weight, factors[: len(narrow)].T, narrow)
        by_weight, by_bias = _as(by_weight, weight), _as(by_bias, bias)
        ctx.save_for_backward(by_states, by_weight, by_bias)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        # Its own: saved tensors must stay as they are.
        scaled = (None if one is None else one * gradient for one in ctx.saved_tensors)
        return *scaled, None, None, None, None


def _room(
    needed: tuple[bool, ...],
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """For the gradients that are wanted. What is summed up over the parts is float32: in the
    numbers of a half-precision weight each part would be rounded away a little."""
    return (
        torch.empty_like(states) if needed[0] else None,
        torch.zeros_like(weight, dtype=torch.float32) if needed[1] else None,
        torch.zeros_like(bias, dtype=torch.float32) if needed[2] and bias is not None else None,
    )


def _as(gradient: torch.Tensor | None, weight: torch.Tensor | None) -> torch.Tensor | None:
    return None if gradient is None or weight is None else gradient.to(weight.dtype)


def _chunk(
    states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    smoothing: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum of the losses of a few tokens, and its gradient by their logits, in float32."""
    logits = functional.linear(states, weight, bias).float()
    asked = (labels != IGNORED)[:, None]
    places = labels.clamp(min=0)[:, None]
    # In place: of a tensor of this size each copy costs as much as a step of the computation.
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


def _add_product(to: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> None:
    if to.dtype == one.dtype:
        to.addmm_(one, other)
    else:
        to += one @ other


@torch.no_grad()
def linear_of(model: Any) -> torch.nn.Linear | None:
    """The head of `model`, if its logits are those of a plain linear layer and no more: tried out
    on a small batch."""
    linear = model.get_output_embeddings()
    if type(linear) is not torch.nn.Linear:
        return None
    with tried_out(model):
        # Without a mask: padding and packing are the body's affair.
        ids = small_batch(model)["input_ids"]
        batch = {"input_ids": ids}
        if model.config.is_encoder_decoder:
            batch["decoder_input_ids"] = ids
        try:
            expected = model(**batch).logits
            with Capture(model) as capture:
                model(**batch)
            if capture.head is None:
                return None
            found = linear(capture.head.states)
        except Refusal:
            return None
    # Of weights in bfloat16, too: the very same product is rounded to the very same numbers.
    same = found.shape == expected.shape and bool(
        (found.float() - expected.float()).abs().max() <= RTOL * expected.float().std()
    )
    return linear if same else None
