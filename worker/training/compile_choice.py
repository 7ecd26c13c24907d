"""Measuring whether a GPU computes a model's layers faster when they are compiled.

Before the first step, a few of the job's own batches go forward and backward through the plain
layers and through the compiled ones. This does not change the training: no weight, no gradient, no
random number. Each layer is compiled in place, so that hooks, names and the chunked loss still
work, and one graph serves all layers of a kind. Evaluations use the plain layers.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from accelerate.utils.other import is_repeated_blocks

from service.contract.spec.spec import JobSpec
from worker.training import build
from worker.training.batches.dataloader import chunks
from worker.training.evaluation.evaluator import on_device
from worker.training.kernels.compile_cache import Verdict
from worker.training.objective import Batch
from worker.training.reproducibility import rng
from worker.training.run import TrainingRun

PATH: Final = "compiled_layers"
"""In the record of fast paths."""
_BATCHES: Final = 3
_PAYS_FROM: Final = 1800.0
"""Remaining seconds of plain steps from which measuring pays: compiling takes a minute or two, and
may save a third."""
_MOST_SECONDS: Final = 300.0
"""Time limit for the compiled layers' first batches, checked after each of them."""
_FASTER: Final = 0.95
"""Share of the plain time from which compiled layers count as faster: more would be noise."""
# The compiled layers draw dropout with torch's own generator, and so the same numbers.
_HOW: Final[dict[str, Any]] = {"backend": "inductor", "options": {"fallback_random": True}}
_ATTENTION: Final = ("sdpa", "eager")
"""transformers' own. For packed rows each batch has other sequence starts, and a compiler would
make a graph for each batch."""
_REASON: Final = 300
"""Characters of a compiler's error in a notice."""
_TOLERANCES: Final = {"fp32": 1e-3, "bf16": 0.1, "fp16": 0.1}
"""Relative to the gradient's norm. Rounding in 16 bits through many layers gives a few percent; a
wrong mask changes all of it."""


def may_be_measured(spec: JobSpec) -> bool:
    """Whether the job's options allow the choice. On a CPU compiled models were slower:
    they cannot use the attention, dropout and loss of `kernels`."""
    training = spec.training
    return (
        build.on_gpu(spec)
        and training.compile_if_faster
        and not (training.compiles or training.full_determinism)
        and training.neftune_noise_alpha is None
        and spec.resources.chosen_strategy.type == "ddp"
    )


def choose(run: TrainingRun, verdict: Verdict) -> None:
    """Compile the layers if the training began with compiled layers, or if they are faster.

    `verdict` is that of earlier jobs of this kind on this machine.
    """
    model = run.state.bare_model
    layers = list(_layers(model))
    if not layers or model.config._attn_implementation not in _ATTENTION:
        return
    paths = run.state.fast_paths

    def measure() -> bool:
        return run.state.ranks.is_main_process and _pays(run, layers, verdict)

    if paths.choose(PATH, measure):
        # If compiling fails later, for a new shape or on another machine, run the plain code.
        torch._dynamo.config.suppress_errors = True
        for layer in layers:
            _compile(layer)


def _layers(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The blocks that a model repeats, the outermost ones."""
    if is_repeated_blocks(model):
        yield from model.children()
        return
    for child in model.children():
        yield from _layers(child)


def _compile(layer: torch.nn.Module) -> None:
    layer.compile(**_HOW)
    compiled: Any = layer._compiled_call_impl

    def call(*arguments: Any, **named: Any) -> Any:
        chosen = compiled if layer.training else layer._call_impl
        return chosen(*arguments, **named)

    layer._compiled_call_impl = call


def _pays(run: TrainingRun, layers: list[torch.nn.Module], verdict: Verdict) -> bool:
    try:
        with _isolated(run) as batches:
            passes = _Passes(run, batches)
            passes.warm_up()
            seconds = passes.seconds()
            steps_left = run.plan.total_steps - run.state.progress.step
            batches_left = steps_left * run.plan.spec.gradient_accumulation_steps
            if seconds / len(batches) * batches_left < _PAYS_FROM:
                return False
            known = verdict.read()
            if known is None:
                return _measured(run, layers, passes, verdict)
            if known:
                run.reporter.notice(
                    "The layers are compiled: an earlier job of this kind has measured that it is "
                    "faster",
                    compiled_layers=True,
                )
            return known
    # Out of memory, for example: the first step reports it, or uses smaller batches.
    except (RuntimeError, MemoryError, TimeoutError) as error:
        run.reporter.notice(f"Whether compiled layers are faster was not measured: {error}")
        return False


def _measured(
    run: TrainingRun,
    layers: list[torch.nn.Module],
    passes: "_Passes",
    verdict: Verdict,
) -> bool:
    """Compile, compare and time; report the result, and keep it for later jobs."""
    # If the compiler hangs or crashes, this stays, and the next attempt does not compile.
    verdict.write(faster=False)
    run.reporter.notice("Measuring whether compiled layers are faster")
    try:
        expected = passes.gradient()
        for layer in layers:
            _compile(layer)
        passes.warm_up()
        distance = _distance(passes.gradient(), expected)
        if not distance <= _TOLERANCES[run.plan.spec.precision]:
            raise ArithmeticError(f"their gradients are {distance:.1%} apart from the plain ones")
        times = _without(layers, passes.seconds), passes.seconds()
    except Exception as error:  # compilers raise all kinds of errors: train without them
        _undo(layers)
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:_REASON]}"
        run.reporter.notice(f"The layers are not compiled: {reason}", compiled_layers=False)
        return False
    _undo(layers)
    by_plain, by_compiled = (each / passes.count for each in times)
    faster = by_compiled <= _FASTER * by_plain
    verdict.write(faster=faster)
    what = "are compiled" if faster else "stay as they are"
    run.reporter.notice(
        f"The layers {what}: a batch takes {by_plain:.4f} s plain and {by_compiled:.4f} s compiled",
        compiled_layers=faster,
        plain_seconds=by_plain,
        compiled_seconds=by_compiled,
    )
    return faster


def _undo(layers: list[torch.nn.Module]) -> None:
    for layer in layers:
        layer._compiled_call_impl = None


def _without(layers: list[torch.nn.Module], timed: Callable[[], float]) -> float:
    """`timed` with the plain layers, right before the compiled ones are timed."""
    compiled = [layer._compiled_call_impl for layer in layers]
    _undo(layers)
    seconds = timed()
    for layer, each in zip(layers, compiled, strict=True):
        layer._compiled_call_impl = each
    return seconds


class _Passes:
    """Forward and backward passes over some batches; the gradient is that of all of them."""

    def __init__(self, run: TrainingRun, batches: list[Batch]) -> None:
        self._run, self._batches = run, batches
        self._model = run.state.bare_model  # alone: no other process takes part
        self._device = run.state.accelerator.device
        self._begins = rng.capture()
        self.count = len(batches)

    def warm_up(self) -> None:
        """Raises TimeoutError after _MOST_SECONDS."""
        began = time.perf_counter()
        for batch in self._batches:
            self._pass(batch)
            self._synchronize()
            if time.perf_counter() - began > _MOST_SECONDS:
                raise TimeoutError(f"no verdict after {_MOST_SECONDS:.0f} s")
        self._clear_gradients()

    def seconds(self) -> float:
        self._synchronize()
        began = time.perf_counter()
        for batch in self._batches:
            self._pass(batch)
        self._synchronize()
        seconds = time.perf_counter() - began
        self._clear_gradients()
        return seconds

    def gradient(self) -> list[torch.Tensor]:
        """By the same random numbers each time."""
        rng.restore(self._begins)
        for batch in self._batches:
            self._pass(batch)
        found = [weight.grad for weight in self._model.parameters() if weight.grad is not None]
        self._clear_gradients()
        return found

    def _pass(self, batch: Batch) -> None:
        items = max(self._run.objective.item_count(batch), 1)
        batch = on_device(batch, self._run.state.accelerator)
        (self._run.compute(self._model, batch, items)[0] / items).backward()

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _clear_gradients(self) -> None:
        for weight in self._model.parameters():
            weight.grad = None


def _distance(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Norm of the difference relative to the expected norm; NaN is above every tolerance."""
    if len(found) != len(expected):
        return float("inf")
    pairs = list(zip(found, expected, strict=True))
    apart = torch.stack([(one - other).float().norm() for one, other in pairs]).norm()
    whole = torch.stack([other.float().norm() for other in expected]).norm()
    return float(apart / whole)


@contextmanager
def _isolated(run: TrainingRun) -> Iterator[list[Batch]]:
    """The first batches of the training; restores its random numbers, gradients and buffers."""
    model = run.state.bare_model
    was_training = model.training
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    examples = run.order(0)[: run.plan.batch_size * _BATCHES]
    with rng.preserved():
        try:
            shares = run.shares.over(chunks(examples, run.plan.batch_size), 0)
            model.train()
            yield [share.batch for share in shares]
        finally:
            model.train(was_training)
            for weight in model.parameters():
                weight.grad = None
            with torch.no_grad():
                for name, value in model.named_buffers():
                    value.copy_(buffers[name])
