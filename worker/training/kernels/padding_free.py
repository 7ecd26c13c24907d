"""Padding-free batches: a padded batch goes into the model as one row without any padding.

Two hooks on the model do this, so that tasks and models need no change. Before the forward pass the
real tokens are packed into one row, whose positions restart with each sequence; after it every
output with a value for each token is unpacked into a padded rectangle again. The attention
(`worker.training.kernels.cpu_attention`, on a GPU `worker.training.kernels.varlen_attention`)
separates the sequences.

On a GPU there is no device sync: `read_batch` reads each batch's mask while it is on the CPU.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple
from weakref import WeakSet

import torch

from worker.training.kernels import (
    attention_masks,
    cpu_attention,
    equivalence_probe,
    varlen_attention,
)
from worker.training.kernels.equivalence_probe import PROBE_ERRORS, RTOL, probing, small_batch
from worker.training.kernels.varlen_attention import Kernel
from worker.training.objective import Batch


@dataclass(frozen=True)
class _Layout:
    """Where the tokens of a padded batch are in its packed row."""

    batch: int
    length: int
    places: torch.Tensor
    """(tokens,) the index of each real token in the flattened rectangle."""
    sequences: cpu_attention.Sequences
    width: int
    """Length of the row: its tokens, and filler that no token attends to and whose output is
    dropped."""
    positions: torch.Tensor
    """(1, width): they restart with each sequence; the filler has the first position."""

    @classmethod
    def from_mask(cls, mask: torch.Tensor, first: int = 0, *, filled: bool = True) -> "_Layout":
        """`mask`: (batch, length) on the CPU, not 0 where a token is real; `first`: the model's
        first position; `filled`: whether the row may have filler."""
        places = mask.flatten().nonzero()[:, 0]
        ends = tuple(accumulate(mask.ne(0).sum(dim=1).tolist(), initial=0))
        width = round_up(len(places)) if filled else len(places)
        if (1, width) == mask.shape:  # packed and padded outputs must differ in shape
            width = len(places)
        positions = torch.full((1, width), first)
        for start, end in pairwise(ends):
            positions[0, start:end] = torch.arange(first, first + end - start)
        return cls(mask.shape[0], mask.shape[1], places, ends, width, positions)

    def on(self, device: torch.device) -> "_Layout":
        """A copy with its tensors on `device`, without a device sync."""
        return replace(
            self,
            places=_to_device(self.places, device),
            positions=_to_device(self.positions, device),
        )

    def for_kernel(self, kernel: Kernel) -> varlen_attention.Sequences:
        """The sequences as the kernel takes them, without empty ones."""
        starts = sorted({*self.sequences, self.width})
        longest = max(end - start for start, end in pairwise(starts))
        device = self.places.device
        return varlen_attention.Sequences(
            _to_device(torch.tensor(starts, dtype=torch.int32), device), longest, kernel
        )

    def packed(self, rectangle: torch.Tensor, fill: int = 0) -> torch.Tensor:
        """(batch, length) → (1, width)."""
        row = rectangle.new_full((self.width,), fill)
        row[: len(self.places)] = rectangle.flatten()[self.places]
        return row[None]

    def unpacked(self, row: torch.Tensor, fill: float) -> torch.Tensor:
        """(1, width, …) → (batch, length, …), `fill` where there is padding."""
        shape = (self.batch * self.length, *row.shape[2:])
        tokens = row[0, : len(self.places)]
        rectangle = row.new_full(shape, fill).index_copy(0, self.places, tokens)
        return rectangle.view(self.batch, self.length, *row.shape[2:])


def round_up(tokens: int) -> int:
    """`tokens` or a little more, so that few different lengths occur: at most 32 between two powers
    of two.

    oneDNN keeps a program of a third of a megabyte for each shape, and tensors of ever new sizes
    fragment the heap of the C library's malloc.
    """
    step = max(8, 1 << max(0, (tokens - 1).bit_length() - 6))
    return -(-tokens // step) * step


def _to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if device.type == "cuda":  # only copies from pinned memory are asynchronous
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class _KnownBatch(NamedTuple):
    """A batch that was read before it was copied to the device."""

    mask: torch.Tensor
    """The mask on the device."""
    layout: _Layout | None
    """None for a batch without padding."""
    sequences: varlen_attention.Sequences | None


@dataclass(frozen=True)
class HookPlace:
    """Where the hooks go in a model, and the model's first position."""

    is_body: bool
    first: int


class PaddingFreeHooks:
    """Hooks on a model, or on its body.

    With a `kernel`, only batches that were passed to `read_batch` are packed, so that nothing is
    read from the device, and `worker.training.kernels.varlen_attention` separates the sequences.
    """

    def __init__(self, model: Any, place: HookPlace, kernel: Kernel | None = None) -> None:
        model = model.base_model if place.is_body else model
        self._place = place
        # Its statistics would count the filler.
        self._filled = not getattr(model.config, "output_router_logits", False)
        self._kernel = kernel
        self._known: _KnownBatch | None = None
        attention_masks.leave_packed_rows()
        if kernel is not None:
            _batch_readers.add(self)
        self._names = tuple(inspect.signature(model.forward).parameters)
        self.used = False
        self._layout: _Layout | None = None
        self._handles = [
            model.register_forward_pre_hook(self._pack, with_kwargs=True),
            model.register_forward_hook(self._unpack, with_kwargs=True, always_call=True),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        _batch_readers.discard(self)

    def read_mask(self, mask: torch.Tensor, sent: torch.Tensor) -> None:
        """`mask` is a batch's mask on the CPU, (batch, length); the model will get it as `sent`."""
        assert self._kernel is not None
        self._known = _KnownBatch(sent, None, None)
        if not bool(mask.all()):
            layout = self._layout_of(mask).on(sent.device)
            self._known = _KnownBatch(sent, layout, layout.for_kernel(self._kernel))

    def _read(self, mask: torch.Tensor) -> _KnownBatch | None:
        """What is known about the mask that the model got; None if the batch cannot be packed."""
        if self._kernel is not None:
            return self._known if self._known is not None and self._known.mask is mask else None
        return _KnownBatch(mask, None if bool(mask.all()) else self._layout_of(mask), None)

    def _layout_of(self, mask: torch.Tensor) -> _Layout:
        return _Layout.from_mask(mask, self._place.first, filled=self._filled)

    def _pack(
        self, _model: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        given = {**dict(zip(self._names, arguments, strict=False)), **named}
        inputs = {name: value for name, value in given.items() if value is not None}
        mask = inputs.get("attention_mask")
        if mask is None or mask.dim() != 2 or not _only_tokens(inputs, mask.shape):
            return None
        if "past_key_values" in inputs or inputs.get("use_cache"):
            return None  # the model is generating
        known = self._read(mask)
        if known is None:
            return None
        layout = known.layout
        if layout is None:
            # There is no padding: without a mask the attention takes its fastest path.
            return (), {name: value for name, value in inputs.items() if name != "attention_mask"}
        self.used = True
        self._layout = layout
        cpu_attention.set_packed(packed=True)
        packed = {
            name: layout.packed(value) if isinstance(value, torch.Tensor) else value
            for name, value in inputs.items()
            if name != "attention_mask"
        }
        packed["position_ids"] = layout.positions
        return (), {**packed, "sequences": known.sequences or layout.sequences}

    def _unpack(
        self,
        model: torch.nn.Module,
        _arguments: tuple[Any, ...],
        _inputs: dict[str, Any],
        output: Any,
    ) -> Any:
        layout, self._layout = self._layout, None
        cpu_attention.set_packed(packed=False)
        if layout is None or output is None:
            return None
        for name, value in output.items():
            if isinstance(value, torch.Tensor) and value.shape[:2] == (1, layout.width):
                # Padding gets the lowest logit, so that a softmax over positions ignores it. The
                # body's output goes into a head, whose result must stay finite.
                fill = 0.0 if self._place.is_body else torch.finfo(value.dtype).min
                output[name] = layout.unpacked(value, fill)
        pooler: Any = getattr(model, "pooler", None)
        if self._place.is_body and pooler is not None:
            output["pooler_output"] = pooler(output[0])  # of each sequence's first token
        return output


_batch_readers: WeakSet[PaddingFreeHooks] = WeakSet()
"""Hooks that need to read each batch; each lives as long as its model."""


def read_batch(batch: Batch, sent: Batch) -> None:
    """Read the model's next batch while it is on the CPU; `sent` is the same on its device."""
    mask = batch.get("attention_mask")
    if mask is not None and mask.dim() == 2:
        for hooks in _batch_readers:
            hooks.read_mask(mask, sent["attention_mask"])


def _only_tokens(inputs: Mapping[str, Any], shape: torch.Size) -> bool:
    """Whether each tensor has one number for each token, unlike some labels and generation."""
    tensors = [value for value in inputs.values() if isinstance(value, torch.Tensor)]
    return "position_ids" not in inputs and all(value.shape == shape for value in tensors)


class _Fit(NamedTuple):
    """What computes the same as a model by itself."""

    ours: bool
    """Our attention, on padded batches."""
    place: HookPlace | None
    """Where hooks compute the same on packed rows."""

    def common(self, other: "_Fit") -> "_Fit":
        return _Fit(self.ours and other.ours, self.place if self.place == other.place else None)


@torch.no_grad()
def install(model: Any) -> PaddingFreeHooks | None:
    """Make `model` compute without padding and with our attention from now on, if it can.

    Three short sequences must give the same as in a padded batch with the model's own attention.
    Otherwise this returns None and batches stay padded; our attention is then used only if it gives
    the same on padded batches. A model whose settings act on longer rows only is tried once more as
    a small model of the same class in which they act on these. So is one in half precision, which
    is too coarse to notice that an attention mixes sequences.
    """
    fit = _Fit(ours=True, place=None)
    exact = model.dtype == torch.float32
    if exact:
        fit = _try(model)
    if fit.ours and (not exact or equivalence_probe.depends_on_length(model)):
        try:
            small = _try(equivalence_probe.small_model(model, torch.device("cpu")))
        except PROBE_ERRORS:
            small = _Fit(ours=False, place=None)
        fit = fit.common(small) if exact else small
    if fit.ours:
        model.set_attn_implementation(cpu_attention.NAME)
    return None if fit.place is None else PaddingFreeHooks(model, fit.place)


def _try(model: Any) -> _Fit:
    with probing(model):
        before = model.config._attn_implementation
        try:
            batch = small_batch(model)
            expected = real_outputs(model, batch)
        except PROBE_ERRORS:
            return _Fit(ours=False, place=None)
        cpu_attention.register()
        model.set_attn_implementation(cpu_attention.NAME)
        try:
            place = _place(model, batch, expected)
            return _Fit(place is not None or _agrees(model, batch, expected), place)
        finally:
            model.set_attn_implementation(before)


def _place(
    model: Any, batch: dict[str, torch.Tensor], expected: list[torch.Tensor]
) -> HookPlace | None:
    for place in hook_places(model):
        hooks = PaddingFreeHooks(model, place)
        agrees = _agrees(model, batch, expected) and hooks.used
        hooks.remove()
        if agrees:
            return place
    return None


def hook_places(model: Any) -> Iterator[HookPlace]:
    """Where the hooks may go."""
    pad = getattr(model.config, "pad_token_id", None)
    for part in (model, model.base_model):
        if "position_ids" in inspect.signature(part.forward).parameters:
            # RoBERTa's positions start after its padding id; most models start with 0.
            for first in (0,) if pad is None else (0, pad + 1):
                yield HookPlace(part is not model, first)


def _agrees(model: Any, batch: dict[str, torch.Tensor], expected: list[torch.Tensor]) -> bool:
    try:
        found = real_outputs(model, batch)
    except PROBE_ERRORS:
        return False
    return are_close(found, expected)


def are_close(
    found: list[torch.Tensor], expected: list[torch.Tensor], *, rtol: float = RTOL
) -> bool:
    """`rtol` is relative to the standard deviation of `expected`, or to a single number."""
    return len(found) == len(expected) and all(
        one.shape == other.shape and bool((one - other).abs().max() <= rtol * _scale(other))
        for one, other in zip(found, expected, strict=True)
    )


def _scale(values: torch.Tensor) -> torch.Tensor:
    return values.std() if values.numel() > 1 else values.abs()


def real_outputs(model: Any, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The model's outputs; those with a value for each token without the padding."""
    real = batch["attention_mask"].bool()
    tensors = [value for value in model(**batch).values() if isinstance(value, torch.Tensor)]
    # Integers, such as indices of the highest logits, follow from the floating-point outputs.
    tensors = [tensor for tensor in tensors if tensor.is_floating_point()]
    return [value[real] if value.shape[:2] == real.shape else value for value in tensors]
