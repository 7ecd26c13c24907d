"""A user asks a base model, trains it, and asks what was trained: HTTP, broker and worker."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stack import Stack
from tests.support.models import save_tiny_llama

pytestmark = [pytest.mark.timeout(400), pytest.mark.long, pytest.mark.heavy]

QUESTION = {"role": "user", "content": "the report"}
ANSWER = {"role": "assistant", "content": "of the water board"}
_START_SECONDS = 20.0


@pytest.mark.parametrize("stack", ["sqlite-valkey"], indirect=True)
def test_a_base_model_and_what_was_trained_from_it(
    stack: Stack, tiny_model: Path, tmp_path: Path
) -> None:
    model = save_tiny_llama(tiny_model.parent / "tiny-llama")
    before = started(stack)  # by other tests with this stack
    first = ask(stack, str(model))
    assert first == generated(model)
    assert ask(stack, str(model)) == first
    assert started(stack) == before + 1

    # The model stays in memory, and does not keep a job waiting.
    job_id = stack.submit(chat_job(stack, model, tmp_path))
    submitted = time.monotonic()
    stack.wait_for(job_id, lambda page: page["state"] != "queued", _START_SECONDS)
    took = time.monotonic() - submitted
    stack.finish(job_id)

    answer = ask(stack, job_id)
    assert answer == ANSWER["content"]
    assert started(stack) == before + 2
    assert took < _START_SECONDS


def ask(stack: Stack, model: str) -> str:
    body = {"model": model, "messages": [QUESTION], "temperature": 0, "max_tokens": 12}
    answer = stack.http.post("/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    content: str = answer.json()["choices"][0]["message"]["content"]
    return content


def started(stack: Stack) -> int:
    """How many models the worker has loaded."""
    return (stack.home / "worker.log").read_text().count("model.started")


def chat_job(stack: Stack, model: Path, folder: Path) -> dict[str, Any]:
    """It learns one answer by heart."""
    file = folder / "chat.jsonl"
    row = json.dumps({"messages": [QUESTION, ANSWER]})
    file.write_text(f"{row}\n" * 8)
    return {
        "task": {"type": "chat"},
        "model": {"name_or_path": str(model)},
        "dataset": {"source": "upload", "train": stack.upload(file)},
        "training": {"max_steps": 60, "learning_rate": 1e-2, "use_cpu": True},
    }


def generated(model_dir: Path) -> str:
    """By transformers alone."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model_dir)
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir)
    ids = tokenizer.apply_chat_template(
        [QUESTION], add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    ends = [0, tokenizer.convert_tokens_to_ids("<|im_end|>")]
    whole = model.generate(
        ids, do_sample=False, max_new_tokens=12, eos_token_id=ends, pad_token_id=0
    )
    text = tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True)
    return str(text).replace("\0", "\ufffd")
