"""Padding-free batches on a GPU: which kernel computes them, and whether it gives the same result
as padded batches.

The comparison uses a small model of the job's shape (`equivalence_probe.small_model`): the whole
model is not on the device yet, and may be sharded later.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final

import torch

from service.contract.spec.spec import JobSpec
from service.contract.stage.events import Notice
from worker.training.fast_paths import FastPaths
from worker.training.kernels import (
    attention_masks,
    cpu_attention,
    equivalence_probe,
    padding_free,
    varlen_attention,
)
from worker.training.kernels.equivalence_check import EquivalenceChecker, Numbers, Verdict, compare
from worker.training.kernels.padding_free import HookPlace, PaddingFreeHooks
from worker.training.kernels.varlen_attention import Kernel
from worker.training.objective import Batch, Features

PATH: Final = "attention"
"""The key in a training's record of fast paths."""
PADDED: Final[dict[str, Any]] = {"kernel": "padded"}
_LOSS_SCALE: Final = 1024.0
"""Keeps float16 gradients from vanishing."""
_INSTEAD: Final = (
    "Batches are computed with padding. `training.train_sampling_strategy: group_by_length` keeps "
    "padding to a minimum, `training.padding_free: false` skips this comparison, and `finetune "
    "doctor` checks the machine"
)
_OTHER_KERNEL: Final = "The kernel `efficient` is tried instead"


@dataclass(frozen=True)
class ChoiceInputs:
    """What the choice of a kernel depends on."""

    features: Features
    """The job's data, from which the tokens of three short batches are taken."""
    fast_paths: FastPaths
    equivalence: EquivalenceChecker


class NoHookPlaceError(Exception):
    """No place for the hooks gives the same result as padded batches."""


def install(model: Any, spec: JobSpec, device: torch.device, given: ChoiceInputs) -> str | None:
    """Make `model` compute without padding on this GPU from now on, if the training that is resumed
    did so, or if a kernel gives the same numbers. Returns None, or why batches stay padded."""
    if not any(padding_free.hook_places(model)):
        return "cannot be used with this model, which takes no `position_ids`"
    halves = {"bf16": torch.bfloat16, "fp16": torch.float16}
    dtype = halves.get(spec.training.precision, model.dtype)
    paths = given.fast_paths
    measure = partial(_measured, model, spec, dtype, device, given)
    began = PATH in paths.chosen
    chosen = paths.choose(PATH, measure)
    if chosen["kernel"] == "padded" and began:
        return "cannot be used in this resumed training, which began with padded batches"
    if chosen["kernel"] == "padded":
        return "gives other numbers on this machine, or fails: see the events of this job"
    capability = torch.cuda.get_device_capability(device)
    if chosen["kernel"] not in varlen_attention.kernels(capability, dtype, 0.0):
        why = f"the attention `{chosen['kernel']}`, which this GPU does not support"
        message = (
            f"The checkpoint was computed with {why}. Batches are padded, and the numbers are not "
            "exactly those of the interrupted training. To get the same numbers, resume on a GPU "
            "of the same model"
        )
        given.equivalence.send(Notice(message=message, data={"fast_path": chosen["kernel"]}))
        return f"was computed with {why}"
    varlen_attention.register()
    model.set_attn_implementation(varlen_attention.NAME)
    PaddingFreeHooks(model, HookPlace(chosen["is_body"], chosen["first"]), chosen["kernel"])
    return None


def attention_dropout(config: Any) -> float:
    """The highest dropout probability in the model's attention. Its names in configurations are
    `attention_dropout`, `attn_pdrop`, `attention_probs_dropout_prob` and so on."""
    found = (
        value
        for name, value in config.to_dict().items()
        if "att" in name and "drop" in name and isinstance(value, int | float)
    )
    return float(max(found, default=0.0))


def _measured(
    model: Any, spec: JobSpec, dtype: torch.dtype, device: torch.device, given: ChoiceInputs
) -> dict[str, Any]:
    """The fastest kernel that gives the same numbers, and where the hooks go; plain JSON."""
    dropout = attention_dropout(model.config)
    able = varlen_attention.kernels(torch.cuda.get_device_capability(device), dtype, dropout)
    elsewhere = given.fast_paths.ranks.all_gather(able)
    common = [name for name in able if all(name in each for each in elsewhere)]
    autocast = spec.training.precision != "fp32"
    trial: list[Trial] = []  # created for the first kernel without a known verdict

    def measure(kernel: Kernel) -> Verdict:
        if not trial:
            trial.append(Trial(model, dtype, device, given.features, autocast=autocast))
        return trial[0].verdict(kernel, dropout)

    kind = {"model": _identity(model), "dtype": str(dtype), "autocast": autocast}
    for kernel in common:
        instead = _INSTEAD if kernel == common[-1] else _OTHER_KERNEL
        verdict = given.equivalence.check(kernel, kind, partial(measure, kernel), instead)
        if verdict is not None:
            return {"kernel": kernel, **verdict.found}
    return PADDED


def _identity(model: Any) -> str:
    config = {n: v for n, v in model.config.to_dict().items() if n != "_name_or_path"}
    text = type(model).__name__ + json.dumps(config, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class Trial:
    """A small model of the job's shape on its device, and its results with padding.

    Raises NoHookPlaceError, and any error of the device.
    """

    def __init__(
        self,
        model: Any,
        dtype: torch.dtype,
        device: torch.device,
        features: Features,
        *,
        autocast: bool,
    ) -> None:
        self._device, self._dtype = device, dtype
        self._model = equivalence_probe.small_model(model, device)
        self._batches = equivalence_probe.short_batches(self._model, features)
        self._precision: AbstractContextManager[Any] = nullcontext()
        varlen_attention.register()
        self._exact = self._numbers()
        with equivalence_probe.probing(self._model):
            self._place = self._find_place()
        if autocast:
            self._precision = torch.autocast(device.type, dtype)
        else:
            self._model.to(dtype)
        self._plain = self._numbers()

    def verdict(self, kernel: Kernel, dropout: float) -> Verdict:
        """`dropout`: the model's attention dropout during training."""
        with self._packed(self._place, kernel) as hooks:
            fast = self._numbers()
            assert hooks.used
        verdict = compare(self._exact, self._plain, fast, self._dtype)
        if verdict.same and dropout:
            require_dropout(kernel, dropout, self._dtype, self._device)
        return replace(verdict, found=asdict(self._place))

    @contextmanager
    def _packed(self, place: HookPlace, kernel: Kernel) -> Iterator[PaddingFreeHooks]:
        before = self._model.config._attn_implementation
        self._model.set_attn_implementation(varlen_attention.NAME)
        hooks = PaddingFreeHooks(self._model, place, kernel)
        try:
            yield hooks
        finally:
            hooks.remove()
            cpu_attention.set_packed(packed=False)
            self._model.set_attn_implementation(before)

    @torch.no_grad()
    def _find_place(self) -> HookPlace:
        """Where hooks give the right result; in float32, so that attention to another sequence
        cannot be mistaken for rounding."""
        expected = [self._outputs(batch) for batch in self._batches]
        why = "sequences would attend to each other, or get other positions"
        # TF32 rounds a thousand times more coarsely.
        rounds = torch.backends.cuda.matmul.fp32_precision == "tf32"
        rtol = (100 if rounds else 1) * equivalence_probe.RTOL
        for place in padding_free.hook_places(self._model):
            try:
                with self._packed(place, "efficient"):
                    found = [self._outputs(batch) for batch in self._batches]
            except equivalence_probe.PROBE_ERRORS as error:
                why = f"{type(error).__name__}: {error}"
                continue
            if all(
                padding_free.are_close(*each, rtol=rtol)
                for each in zip(found, expected, strict=True)
            ):
                return place
        raise NoHookPlaceError(f"the model cannot compute packed batches ({why})")

    def _outputs(self, batch: Batch) -> list[torch.Tensor]:
        sent = {name: value.to(self._device) for name, value in batch.items()}
        attention_masks.read_batch(batch)
        padding_free.read_batch(batch, sent)
        with self._precision:
            return padding_free.real_outputs(self._model, sent)

    def _numbers(self) -> Numbers:
        """The outputs for the real tokens, and the gradient of their mean square; float32."""
        self._model.zero_grad()
        outputs: list[torch.Tensor] = []
        for batch in self._batches:
            found = [value.float() for value in self._outputs(batch)]
            loss = torch.stack([value.square().mean() for value in found]).sum()
            (loss * _LOSS_SCALE).backward()
            outputs += [value.detach() for value in found]
        weights = self._model.parameters()
        return Numbers(outputs, [w.grad.float() for w in weights if w.grad is not None])


def require_dropout(
    kernel: Kernel, dropout: float, dtype: torch.dtype, device: torch.device
) -> None:
    """RuntimeError unless the kernel drops single weights with this probability, and the same ones
    in its backward pass.

    With scores of 0 all weights of a sequence of L tokens are 1 / L. With the identity matrix as
    values the output is the weights; as gradient it makes the values' gradient their transpose.
    """
    lengths, heads = (64, 32, 48), 8
    eye = torch.eye(64, dtype=dtype, device=device)
    values = torch.cat([eye[:length] for length in lengths])[None, None].repeat(1, heads, 1, 1)
    values.requires_grad_()
    starts = torch.tensor([0, 64, 96, 144], dtype=torch.int32, device=device)
    sequences = varlen_attention.Sequences(starts, 64, kernel)
    nothing = torch.zeros_like(values)
    module = torch.nn.Identity()
    torch.manual_seed(0)
    mixed, _ = varlen_attention.attention(
        module, nothing, nothing, values, None, dropout, is_causal=False, sequences=sequences
    )
    weights = mixed[0].transpose(0, 1)  # (heads, tokens, 64)
    (by_values,) = torch.autograd.grad(weights, values, values.detach()[0])
    places = starts.tolist()
    dropped = total = 0
    for start, length in zip(places, lengths, strict=False):
        block = weights[:, start : start + length, :length].float()
        back = by_values[0, :, start : start + length, :length].float()
        expected = block.ne(0) / (length * (1 - dropout))
        same = torch.allclose(block, expected, rtol=0.02) and torch.allclose(
            back, block.transpose(1, 2), rtol=0.02
        )
        if not same:
            raise RuntimeError("its dropout does not drop single weights")
        dropped += int(block.eq(0).sum())
        total += block.numel()
    share, spread = dropped / total, math.sqrt(dropout * (1 - dropout) / total)
    if abs(share - dropout) > 6 * spread:
        raise RuntimeError(f"it drops {share:.1%} of the weights instead of {dropout:.1%}")
