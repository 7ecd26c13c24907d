"""Compares a job's training speed with `transformers.Trainer` on the same model and data."""

import json
import time
from collections.abc import Callable
from typing import Any, Final

from service.contract.stages import StageRequest
from worker.doctor import tiny
from worker.doctor.check import Context, Finding, failed, ok, warning
from worker.doctor.jobs import Ended, Jobs, replace

_MIN_RATIO: Final = 0.8
"""Warn if a training on a GPU is slower than this share of Trainer's speed."""
_MEASURED: Final = "speed.json"
_ON_CPU: Final = {"hidden_size": 64, "intermediate_size": 128}
_ON_GPU: Final = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "intermediate_size": 2048,
    "vocab_size": 32_000,
    "max_position_embeddings": 512,
}
_LENGTH: Final = 64
_WARMUP_STEPS: Final = 3
"""Steps that are not timed."""


def speed(context: Context) -> Finding:
    """Tokens per second, MFU and peak memory, with 0 and 2 loader workers."""
    jobs = Jobs.of(context)
    on_gpu = context.device == "cuda"
    body = jobs.body("causal-lm", block_size=_LENGTH, copies=300 if on_gpu else 20)
    del body["dataset"]["validation"]
    sizes = _ON_GPU if on_gpu else _ON_CPU
    folder = tiny.model(tiny.DECODER, context.scratch / "files", **sizes)
    body["model"] = {"name_or_path": str(folder)}
    options: dict[str, Any] = {"max_steps": 40 if on_gpu else 10, "logging_steps": 1000}
    if on_gpu:
        options |= {"precision": "auto", "per_device_train_batch_size": 32}
    measured = {}
    for name, workers, prelude in (
        ("0 loader workers", 0, _time_ours),
        ("2 loader workers", 2, _time_ours),
        ("Trainer", 0, _train_by_trainer),
    ):
        ended = jobs.train(body, prelude=prelude, dataloader_num_workers=workers, **options)
        file = ended.request.attempt_dir / _MEASURED
        if not file.exists():
            remedy = "See the check `tasks`, and send this report."
            return failed(f"{name}: nothing was measured", reason=ended.ending, remedy=remedy)
        measured[name] = json.loads(file.read_text()) | _mfu(ended)
    return _compared(measured, on_gpu=on_gpu)


def _compared(measured: dict[str, Any], *, on_gpu: bool) -> Finding:
    rates = {name: numbers["tokens_per_second"] for name, numbers in measured.items()}
    trainer = rates.pop("Trainer")
    best = max(rates.values())
    summary = f"{best:,.0f} tokens/s, {best / trainer:.2f} times Trainer's"
    mfu = max(numbers.get("mfu", 0.0) for numbers in measured.values())
    summary += f", MFU {mfu:.1%}" if mfu else ""
    if not on_gpu or best >= _MIN_RATIO * trainer:
        return ok(summary, **measured)
    return warning(
        summary,
        reason=f"Trainer reaches {trainer:,.0f} tokens/s",
        remedy="Trainings work, but they could be faster. Please send this report.",
        **measured,
    )


def _mfu(ended: Ended) -> dict[str, float]:
    """MFU of the whole training, including its first steps; empty if the peak is unknown."""
    if not ended.finished or "train_mfu" not in ended.result.metrics:
        return {}
    return {"mfu": ended.result.metrics["train_mfu"]}


# ---- in the stage's process -------------------------------------------------------------------


class _Clock:
    """Times a training from the end of step `_WARMUP_STEPS` to the end of the last step."""

    def __init__(self, request: StageRequest) -> None:
        assert request.prepared is not None
        training = request.spec.training
        self._file = request.attempt_dir / _MEASURED
        self._steps = training.max_steps
        self._tokens = training.per_device_train_batch_size * _LENGTH
        self._begin = 0.0

    def step(self, number: int) -> None:
        if number in (_WARMUP_STEPS, self._steps):
            _synchronize()
        if number == _WARMUP_STEPS:
            self._begin = time.perf_counter()
        if number == self._steps:
            seconds = time.perf_counter() - self._begin
            rate = (self._steps - _WARMUP_STEPS) * self._tokens / seconds
            found = {"tokens_per_second": rate, "peak_memory_bytes": _peak_bytes()}
            self._file.write_text(json.dumps(found))


def _synchronize() -> None:
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _peak_bytes() -> int:
    from worker.training import memory

    return memory.peak_bytes()


def _time_ours(request: StageRequest) -> None:
    from worker.training import loop
    from worker.training.run import TrainingRun

    plain, clock = loop.train_step, _Clock(request)

    def timed(run: TrainingRun, micro_batches: Any) -> Any:
        found = plain(run, micro_batches)
        clock.step(run.state.progress.step)
        return found

    replace(loop, "train_step", timed)


def _train_by_trainer(request: StageRequest) -> None:
    """Train with `transformers.Trainer` instead of the stage."""
    from worker.stages import train

    replace(train, "main", _trainer(request))


def _trainer(request: StageRequest) -> Callable[..., None]:
    import transformers

    from worker.tasks.base import load_splits
    from worker.training import build

    spec, prepared, clock = request.spec.training, request.prepared, _Clock(request)
    assert prepared is not None

    class Timed(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_more: Any) -> None:  # noqa: ARG002
            clock.step(state.global_step)

    def main(*_arguments: Any) -> None:
        on_gpu = build.on_gpu(request.spec)
        bf16 = on_gpu and _computes_bf16()
        arguments = transformers.TrainingArguments(
            output_dir=str(request.attempt_dir / "trainer"),
            max_steps=spec.max_steps,
            per_device_train_batch_size=spec.per_device_train_batch_size,
            bf16=bf16,
            fp16=on_gpu and not bf16,
            use_cpu=not on_gpu,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_steps=1000,
            dataloader_drop_last=True,
            dataloader_pin_memory=on_gpu,
        )
        transformers.Trainer(
            model=transformers.AutoModelForCausalLM.from_pretrained(prepared.model_dir),
            args=arguments,
            train_dataset=load_splits(prepared.prepared_dir)["train"].features,
            data_collator=_collate,
            callbacks=[Timed()],
        ).train()

    return main


def _collate(rows: list[Any]) -> dict[str, Any]:
    import torch

    ids = torch.tensor([list(row["input_ids"]) for row in rows])
    return {"input_ids": ids, "labels": ids}


def _computes_bf16() -> bool:
    import torch

    return torch.cuda.get_device_capability() >= (8, 0)
