"""Padding-free batches: a padded batch goes into the model as one row without any padding.

Two hooks on the model do it, so that neither a task nor a model knows of it: before the forward
pass the real tokens are joined into one row whose positions restart with each sequence, and after
it every output that has a place for each token is laid out as a padded rectangle again. The
attention (`worker.training.kernels.cpu_attention`, on a GPU
`worker.training.kernels.varlen_attention`) keeps the sequences apart.

A GPU is not asked how long the sequences are: `see` reads each batch's mask while it is on the CPU.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple
from weakref import WeakSet

import torch

from worker.training.kernels import cpu_attention, varlen_attention
from worker.training.kernels.equivalence_probe import RTOL, Refusal, small_batch, tried_out
from worker.training.kernels.varlen_attention import Kernel
from worker.training.objective import Batch


@dataclass(frozen=True)
class _Layout:
    """Where the tokens of a padded batch lie in its row."""

    batch: int
    length: int
    places: torch.Tensor
    """(tokens,) of each real token in the flattened rectangle."""
    sequences: cpu_attention.Sequences
    width: int
    """Of the row: its tokens, and filler that no token sees and that no output is taken of."""
    positions: torch.Tensor
    """(1, width): counted anew in each sequence, and all the first one after them."""

    @classmethod
    def of(cls, mask: torch.Tensor, first: int = 0) -> "_Layout":
        """`mask`: (batch, length) on the CPU, not 0 where a token is real; `first`: the model's
        first position."""
        places = mask.flatten().nonzero()[:, 0]
        ends = tuple(accumulate(mask.ne(0).sum(dim=1).tolist(), initial=0))
        width = rounded(len(places))
        if (1, width) == mask.shape:  # a row is told from a rectangle by its shape
            width = len(places)
        positions = torch.full((1, width), first)
        for start, end in pairwise(ends):
            positions[0, start:end] = torch.arange(first, first + end - start)
        return cls(mask.shape[0], mask.shape[1], places, ends, width, positions)

    def on(self, device: torch.device) -> "_Layout":
        """With its tensors there, without a wait for the device."""
        return replace(
            self, places=_sent(self.places, device), positions=_sent(self.positions, device)
        )

    def for_kernel(self, kernel: Kernel) -> varlen_attention.Sequences:
        """Without empty sequences, which no kernel need know of."""
        starts = sorted({*self.sequences, self.width})
        longest = max(end - start for start, end in pairwise(starts))
        device = self.places.device
        return varlen_attention.Sequences(
            _sent(torch.tensor(starts, dtype=torch.int32), device), longest, kernel
        )

    def joined(self, rectangle: torch.Tensor, fill: int = 0) -> torch.Tensor:
        """(batch, length) to (1, width)."""
        row = rectangle.new_full((self.width,), fill)
        row[: len(self.places)] = rectangle.flatten()[self.places]
        return row[None]

    def laid_out(self, row: torch.Tensor, fill: float) -> torch.Tensor:
        """(1, width, …) to (batch, length, …), `fill` where there is padding."""
        shape = (self.batch * self.length, *row.shape[2:])
        tokens = row[0, : len(self.places)]
        rectangle = row.new_full(shape, fill).index_copy(0, self.places, tokens)
        return rectangle.view(self.batch, self.length, *row.shape[2:])


def rounded(tokens: int) -> int:
    """`tokens` or a little more, so that rows of few different lengths occur: at most 32 between a
    power of two and the next.

    oneDNN keeps a program for each shape that it has met, a third of a megabyte each, and the C
    library's malloc finds no room for tensors of ever new sizes among those that are left.
    """
    step = max(8, 1 << max(0, (tokens - 1).bit_length() - 6))
    return -(-tokens // step) * step


def _sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if device.type == "cuda":  # from other memory the copy would not be asynchronous
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class _Seen(NamedTuple):
    """A batch that was read before it was sent to the device."""

    mask: torch.Tensor
    """On the device."""
    layout: _Layout | None
    """None of a batch without padding."""
    sequences: varlen_attention.Sequences | None


class Packing:
    """Hooks on a model, or on its body. `first` is the model's first position.

    With a `kernel` only batches are joined that were shown to `see`, so that nothing is read from
    the device, and `worker.training.kernels.varlen_attention` keeps the sequences apart.
    """

    def __init__(
        self, model: torch.nn.Module, first: int, *, is_body: bool, kernel: Kernel | None = None
    ) -> None:
        self.first = first
        self.is_body = is_body
        self._kernel = kernel
        self._seen: _Seen | None = None
        if kernel is not None:
            _seeing.add(self)
        self._names = tuple(inspect.signature(model.forward).parameters)
        self.used = False
        self._layout: _Layout | None = None
        self._handles = [
            model.register_forward_pre_hook(self._join, with_kwargs=True),
            model.register_forward_hook(self._lay_out, with_kwargs=True, always_call=True),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        _seeing.discard(self)

    def see(self, mask: torch.Tensor, sent: torch.Tensor) -> None:
        """`mask` is a batch's, (batch, length) on the CPU; the model is given it as `sent`."""
        assert self._kernel is not None
        self._seen = _Seen(sent, None, None)
        if not bool(mask.all()):
            layout = _Layout.of(mask, self.first).on(sent.device)
            self._seen = _Seen(sent, layout, layout.for_kernel(self._kernel))

    def _read(self, mask: torch.Tensor) -> _Seen | None:
        """What is known of the mask that the model is given; None if it must stay as it is."""
        if self._kernel is not None:
            return self._seen if self._seen is not None and self._seen.mask is mask else None
        return _Seen(mask, None if bool(mask.all()) else _Layout.of(mask, self.first), None)

    def _join(
        self, _model: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        given = {**dict(zip(self._names, arguments, strict=False)), **named}
        inputs = {name: value for name, value in given.items() if value is not None}
        mask = inputs.get("attention_mask")
        if mask is None or mask.dim() != 2 or not _only_tokens(inputs, mask.shape):
            return None
        if "past_key_values" in inputs or inputs.get("use_cache"):
            return None  # it generates
        seen = self._read(mask)
        if seen is None:
            return None
        layout = seen.layout
        if layout is None:
            # A rectangle already: without a mask it is attended to whole, and at once.
            return (), {name: value for name, value in inputs.items() if name != "attention_mask"}
        self.used = True
        self._layout = layout
        cpu_attention.packed(True)
        joined = {
            name: layout.joined(value) if isinstance(value, torch.Tensor) else value
            for name, value in inputs.items()
            if name != "attention_mask"
        }
        joined["position_ids"] = layout.positions
        return (), {**joined, "sequences": seen.sequences or layout.sequences}

    def _lay_out(
        self,
        model: torch.nn.Module,
        _arguments: tuple[Any, ...],
        _inputs: dict[str, Any],
        output: Any,
    ) -> Any:
        layout, self._layout = self._layout, None
        cpu_attention.packed(False)
        if layout is None or output is None:
            return None
        for name, value in output.items():
            if isinstance(value, torch.Tensor) and value.shape[:2] == (1, layout.width):
                # Padding gets the lowest logit there is: no softmax over places sees it. A head
                # goes over the body's output, and must stay finite there.
                fill = 0.0 if self.is_body else torch.finfo(value.dtype).min
                output[name] = layout.laid_out(value, fill)
        pooler: Any = getattr(model, "pooler", None)
        if self.is_body and pooler is not None:
            output["pooler_output"] = pooler(output[0])  # of each sequence's first token
        return output


_seeing: WeakSet[Packing] = WeakSet()
"""Those that must be shown each batch; each lives as long as the model that it is hooked on."""


def see(batch: Batch, sent: Batch) -> None:
    """`batch` is what the model is given next, still on the CPU, and `sent` the same on its
    device."""
    mask = batch.get("attention_mask")
    if mask is not None and mask.dim() == 2:
        for packing in _seeing:
            packing.see(mask, sent["attention_mask"])


def _only_tokens(inputs: Mapping[str, Any], shape: torch.Size) -> bool:
    """Whether each tensor has one number for each token: labels and generation go as they are."""
    tensors = [value for value in inputs.values() if isinstance(value, torch.Tensor)]
    return "position_ids" not in inputs and all(value.shape == shape for value in tensors)


@torch.no_grad()
def install(model: Any) -> Packing | None:
    """Let `model` compute without padding from now on, with our attention, if it can: tried out on
    three short sequences, which must give what they give in a padded batch with the attention that
    it has. None if not: then batches stay padded, and the attention is ours only where it gives the
    same on them."""
    if model.dtype != torch.float32:
        return None  # too coarse to tell an attention that mixes sequences from one that does not
    with tried_out(model):
        batch = small_batch(model)
        try:
            expected = values(model, batch)
        except Refusal:
            return None
        before = model.config._attn_implementation
        cpu_attention.register()
        model.set_attn_implementation(cpu_attention.NAME)
        for part, first in places(model):
            packing = Packing(part, first, is_body=part is not model)
            if _agrees(model, batch, expected) and packing.used:
                return packing
            packing.remove()
        if not _agrees(model, batch, expected):
            model.set_attn_implementation(before)
    return None


def places(model: Any) -> Iterator[tuple[Any, int]]:
    """Where the hooks may go, with the first position there."""
    for part in (model, model.base_model):
        if "position_ids" in inspect.signature(part.forward).parameters:
            for first in _first_positions(model):
                yield part, first


def _first_positions(model: Any) -> tuple[int, ...]:
    """RoBERTa's positions start after its padding id; most start with 0."""
    pad = getattr(model.config, "pad_token_id", None)
    return (0,) if pad is None else (0, pad + 1)


def _agrees(model: Any, batch: dict[str, torch.Tensor], expected: list[torch.Tensor]) -> bool:
    try:
        found = values(model, batch)
    except Refusal:
        return False
    return alike(found, expected)


def alike(found: list[torch.Tensor], expected: list[torch.Tensor], *, rtol: float = RTOL) -> bool:
    """`rtol`: of the spread of what is `expected`."""
    return len(found) == len(expected) and all(
        one.shape == other.shape and bool((one - other).abs().max() <= rtol * other.std())
        for one, other in zip(found, expected, strict=True)
    )


def _is_number(value: Any) -> bool:
    """Places among the highest logits, for example, are whole, and follow from what is not."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def values(model: Any, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """What the model says, only of real tokens where it says something of each."""
    real = batch["attention_mask"].bool()
    tensors = [value for value in model(**batch).values() if _is_number(value)]
    return [value[real] if value.shape[:2] == real.shape else value for value in tensors]
