"""A finished chat model opens elsewhere: transformers alone writes what the job has shown."""

from pathlib import Path
from typing import Any, Final

import pytest
import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from service.contract.spec.peft import BASE_CONFIG_FOLDER
from tests.support.models import save_tiny_llama
from tests.tasks.stages import StagedJob, job_of
from worker.tasks.chat import templates

LORA: Final = {"method": "lora", "r": 4, "lora_alpha": 8, "target_modules": "all-linear"}
NEW_TOKENS: Final = 12
QUESTIONS: Final = [f"who read {word}?" for word in ("it", "the report", "all", "that")]
PROMPTS: Final = [f"{question} {number}" for number in range(5) for question in QUESTIONS]
OUTPUT: Final = "attempts/2/output"


def talk(question: str, answer: str | None = None) -> list[dict[str, str]]:
    prompt = [{"role": "user", "content": question}]
    return prompt if answer is None else [*prompt, {"role": "assistant", "content": answer}]


def trained(
    home: Path, peft: dict[str, Any] | None, steps: int = 25, **task: Any
) -> tuple[StagedJob, Any]:
    """A finished job, and its samples."""
    rows = [{"messages": talk(each, f"{each[4:8]} the board")} for each in QUESTIONS * 4]
    job = job_of(
        home,
        {"type": "chat", "generate": {"max_new_tokens": NEW_TOKENS}, **task},
        save_tiny_llama(home / "base"),
        {"train": rows, "validation": rows[:6]},
        {"max_steps": steps, "learning_rate": 2e-2, "eval_on_start": False},
        peft=peft,
    )
    result, _ = job.train()
    return job, result.samples


def loaded(folder: Path) -> tuple[Any, Any]:
    """As a stranger loads a whole model."""
    return (
        AutoTokenizer.from_pretrained(folder),
        AutoModelForCausalLM.from_pretrained(folder).eval(),
    )


def loaded_adapter(folder: Path, base: Path) -> Any:
    """As the code of the card loads an adapter."""
    config = AutoConfig.from_pretrained(folder, subfolder=BASE_CONFIG_FOLDER)
    model: Any = AutoModelForCausalLM.from_pretrained(base, config=config)
    model.generation_config = GenerationConfig.from_pretrained(folder, subfolder=BASE_CONFIG_FOLDER)
    return PeftModel.from_pretrained(model, str(folder)).eval()


def answered(tokenizer: Any, model: Any, question: str) -> list[int]:
    """The greedy tokens after the prompt, the one that ends the turn included."""
    encoded = tokenizer.apply_chat_template(
        talk(question), add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    with torch.no_grad():
        tokens = model.generate(**encoded, max_new_tokens=NEW_TOKENS)
    found: list[int] = tokens[0, encoded["input_ids"].shape[1] :].tolist()
    return found


@pytest.mark.parametrize(
    ("peft", "task"),
    [
        (None, {}),
        ({**LORA, "merge": True}, {}),
        (None, {"chat_template": "zephyr"}),
    ],
    ids=["full", "merged", "template"],
)
def test_it_writes_elsewhere_what_its_samples_show(
    tmp_path: Path, peft: dict[str, Any] | None, task: dict[str, Any]
) -> None:
    job, samples = trained(tmp_path / "home", peft, **task)
    tokenizer, model = loaded(job.workspace / OUTPUT)
    end = tokenizer.eos_token_id if task else tokenizer.convert_tokens_to_ids("<|im_end|>")
    stopped = 0
    for sample in samples:
        tokens = answered(tokenizer, model, sample["prompt"])
        stopped += tokens[-1] == end
        assert end not in tokens[:-1]
        assert tokenizer.decode(tokens, skip_special_tokens=True) == sample["prediction"]
    assert len(samples) == 3
    assert stopped, "the model has learned to end its turn"
    if task:
        assert tokenizer.chat_template == templates.read("zephyr")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_merged_and_unmerged_write_the_same_for_20_prompts(tmp_path: Path) -> None:
    # After a few steps the answers still differ from each other.
    whole, _ = trained(tmp_path / "whole", {**LORA, "merge": True}, steps=3)
    parts, _ = trained(tmp_path / "parts", LORA, steps=3)
    tokenizer, merged = loaded(whole.workspace / OUTPUT)
    adapter = loaded_adapter(parts.workspace / OUTPUT, tmp_path / "parts/base")
    of_adapter = AutoTokenizer.from_pretrained(parts.workspace / OUTPUT)
    assert of_adapter.chat_template == tokenizer.chat_template
    found = [answered(tokenizer, merged, question) for question in PROMPTS]
    assert found == [answered(of_adapter, adapter, question) for question in PROMPTS]
    assert len(set(map(tuple, found))) > 5


def test_a_job_that_predicts_writes_the_same(tmp_path: Path) -> None:
    job, _ = trained(tmp_path / "home", None)
    folder = job.workspace / OUTPUT
    test = {"test": [{"messages": talk(each)} for each in PROMPTS]}
    options = {"task": job.body["task"], "training": job.body["training"], "mode": "predict"}
    predicting = job_of(tmp_path / "predicting", model=folder, dataset=test, **options)
    predicting.train()
    tokenizer, model = loaded(folder)
    written = [
        tokenizer.decode(answered(tokenizer, model, each), skip_special_tokens=True)
        for each in PROMPTS
    ]
    found = predicting.predictions("test/predictions.json")
    assert [row["prediction"] for row in found] == written
