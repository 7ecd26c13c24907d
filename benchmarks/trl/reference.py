"""TRL's side of a comparison, in its own process, where TRL can be imported: trains with its
`SFTTrainer` or `DPOTrainer`, or prepares rows as `SFTTrainer` does. Prints one line of JSON.

    python -m benchmarks.trl.reference (train | labels) CASE.json
"""

import json
import resource
import sys
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer, TrainerCallback

from benchmarks.step_clock import StepClock
from benchmarks.trl.scratch import TRLCase
from worker.training.reproducibility import rng

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

CONFIGS = {"SFTTrainer": "SFTConfig", "DPOTrainer": "DPOConfig"}


def trainer_of(case: TRLCase, *callbacks: TrainerCallback) -> Any:
    """The trainer with its rows prepared, in their own order."""
    config = getattr(trl, CONFIGS[case.trainer])(
        output_dir=f"{case.folder}/trl",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        train_sampling_strategy="sequential",
        model_init_kwargs={"dtype": case.dtype},
        **case.options,
    )
    rows = [json.loads(line) for line in Path(case.data).read_text().splitlines()]
    names = {name: None for row in rows for name in row}  # the first row names the columns
    tokenizer = AutoTokenizer.from_pretrained(case.model_dir)
    tokenizer.chat_template = case.chat_template or tokenizer.chat_template
    return getattr(trl, case.trainer)(
        model=case.model_dir,
        args=config,
        processing_class=tokenizer,
        # Without the option each turn would get the keys of all others.
        train_dataset=Dataset.from_list(
            [{**names, **row} for row in rows], on_mixed_types="use_json"
        ),
        peft_config=LoraConfig(task_type="CAUSAL_LM", **case.lora) if case.lora else None,
        callbacks=list(callbacks),
    )


def _places(examples: Any, prepared_dir: Path) -> list[int]:
    """For each packed example of ours the place of TRL's that holds the same sequences. KeyError if
    there is none."""
    ours = Dataset.from_file(str(prepared_dir / "train" / "features.arrow"))
    places = {
        _sequences(each["input_ids"], each["seq_lengths"]): place
        for place, each in enumerate(examples)
    }
    return [places[_sequences(each["input_ids"], each["lengths"])] for each in ours]


def _sequences(tokens: list[int], lengths: list[int]) -> tuple[tuple[int, ...], ...]:
    ends = accumulate(lengths, initial=0)
    return tuple(sorted(tuple(tokens[start:end]) for start, end in pairwise(ends)))


def train(case: TRLCase) -> dict[str, Any]:
    clock = StepClock()
    trainer = trainer_of(case, clock)
    examples = trainer.train_dataset
    if case.prepared_dir is not None:
        examples = examples.select(_places(examples, Path(case.prepared_dir)))
    # In the order of our first epoch: TRL would shuffle with another generator.
    trainer.train_dataset = examples.select(rng.shuffled(len(examples), trainer.args.seed, 0))
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    return {
        "seconds": clock.seconds,
        "tokens": log[-1]["num_tokens"],
        "steps": log,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def labels(case: TRLCase) -> dict[str, list[list[int]]]:
    """The tokens of the rows and which of them are trained, as TRL prepares them."""
    rows = trainer_of(case).train_dataset
    return {name: rows[name][:] for name in ("input_ids", "labels")}


COMMANDS = {"train": train, "labels": labels}

if __name__ == "__main__":
    torch.set_num_interop_threads(1)
    command, path = sys.argv[1:]
    print(json.dumps(COMMANDS[command](TRLCase(**json.loads(Path(path).read_text())))))
