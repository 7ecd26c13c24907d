"""Trains with `transformers.Trainer` on features that `prepare` made: the reference side of
benchmarks/training_speed.py, in its own process. Prints one line of JSON.

    python -m benchmarks.reference CASE.json
"""

import json
import resource
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers import (
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

from benchmarks.cases import LORA_RANK, Case
from benchmarks.step_clock import StepClock
from worker.tasks.base import load_splits

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


class _Counting:
    """A collator that counts the tokens of its features, without padding."""

    def __init__(self, collate: Any) -> None:
        self._collate = collate
        self.tokens = 0

    def __call__(self, features: list[dict[str, Any]]) -> Any:
        self.tokens += sum(len(feature["input_ids"]) for feature in features)
        return self._collate(features)


def _windows_collator(tokenizer: Any, max_length: int | None) -> Any:
    """Padded to the maximum length, or to the longest of the batch."""

    def collate(features: list[dict[str, Any]]) -> Any:
        batch = tokenizer.pad(
            [{"input_ids": list(each["input_ids"])} for each in features],
            padding="max_length" if max_length else True,
            max_length=max_length,
            return_tensors="pt",
        )
        types = torch.zeros_like(batch["input_ids"])
        for row, each in enumerate(features):
            types[row, : len(each["token_type_ids"])] = torch.tensor(each["token_type_ids"])
        batch["token_type_ids"] = types
        for name in ("start_positions", "end_positions"):
            batch[name] = torch.tensor([each[name] for each in features])
        return batch

    return collate


def _blocks_collator(tokenizer: Any, *, mlm: bool) -> Any:
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=mlm)

    def of_blocks(features: list[dict[str, Any]]) -> Any:
        rows = [{"input_ids": list(each["input_ids"])} for each in features]
        return collate(rows)

    return of_blocks


def _collator(case: Case, tokenizer: Any) -> Any:
    if case.name == "qa":
        return _windows_collator(tokenizer, None if case.best else case.max_length)
    return _blocks_collator(tokenizer, mlm=case.name == "mlm")


def _model(case: Case, folder: Path) -> Any:
    auto = {
        "qa": transformers.AutoModelForQuestionAnswering,
        "mlm": transformers.AutoModelForMaskedLM,
        "clm": transformers.AutoModelForCausalLM,
        "lora": transformers.AutoModelForCausalLM,
    }[case.name]
    transformers.set_seed(case.seed)
    if case.from_scratch:
        return auto.from_config(transformers.AutoConfig.from_pretrained(folder))
    model = auto.from_pretrained(folder)
    if case.name == "lora":
        return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=LORA_RANK))
    return model


def main(case: Case) -> dict[str, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(case.tokenizer_dir)
    features = load_splits(case.prepared_dir)["train"].features
    counting = _Counting(_collator(case, tokenizer))
    arguments = TrainingArguments(
        output_dir=str(case.folder / "trainer"),
        seed=case.seed,
        max_steps=case.steps,
        per_device_train_batch_size=case.batch_size,
        learning_rate=case.learning_rate,
        logging_steps=case.steps,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
        bf16=case.best and case.bf16,
        train_sampling_strategy="group_by_length" if case.best and case.name == "qa" else "random",
    )
    clock = StepClock()
    trainer = Trainer(
        model=_model(case, case.model_dir),
        args=arguments,
        train_dataset=features,
        data_collator=counting,
        callbacks=[clock],
    )
    outcome = trainer.train()
    return {
        "seconds": clock.seconds,
        "tokens": counting.tokens,
        "loss": outcome.training_loss,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


if __name__ == "__main__":
    print(json.dumps(main(Case.read(Path(sys.argv[1])))))
