"""Fine-tune a model on conversations with the unmodified `openai` package.

export OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=ft-…
python examples/openai_client/supervised.py examples/gsm8k/chat-train.jsonl org/model
"""

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import openai

KEYS: Final = {"role", "content", "name", "function_call", "weight"}
ROLES: Final = {"system", "user", "assistant", "function"}
ENDED: Final = ("succeeded", "failed", "cancelled")


def main(file: Path, model: str) -> None:
    faults = check([json.loads(line) for line in file.read_text().splitlines()])
    if faults:
        raise SystemExit(f"{file}: {dict(faults)}")
    client = openai.OpenAI()
    training_file = client.files.wait_for_processing(
        client.files.create(file=file, purpose="fine-tune").id, poll_interval=1
    )
    job = client.fine_tuning.jobs.create(
        model=model, training_file=training_file.id, suffix="example"
    )
    print(f"{job.id} trains with {job.hyperparameters.to_json(indent=None)}")
    while (job := client.fine_tuning.jobs.retrieve(job.id)).status not in ENDED:
        time.sleep(2)
    for event in reversed(client.fine_tuning.jobs.list_events(job.id, limit=50).data):
        print(event.message)
    if job.error is not None and job.error.message:
        raise SystemExit(job.error.message)
    print(f"{job.status}: {job.fine_tuned_model}, {job.trained_tokens} tokens")
    if job.fine_tuned_model is not None:
        ask(client, job.fine_tuned_model, "Tom has 3 bags of 4 apples. How many apples has he?")


def ask(client: openai.OpenAI, model: str, question: str) -> None:
    completion = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], temperature=0, max_tokens=200
    )
    print(f"answer: {completion.choices[0].message.content}")


def check(rows: list[Any]) -> Counter[str]:
    """How many faults of each kind the rows have, under the names that OpenAI publishes."""
    faults: Counter[str] = Counter()
    for row in rows:
        if not isinstance(row, dict):
            faults["data_type"] += 1
        elif not row.get("messages"):
            faults["missing_messages_list"] += 1
        else:
            for message in row["messages"]:
                faults.update(name for name, is_fault in faults_of(message) if is_fault)
            if all(message.get("role") != "assistant" for message in row["messages"]):
                faults["example_missing_assistant_message"] += 1
    return faults


def faults_of(message: dict[str, Any]) -> list[tuple[str, bool]]:
    content = message.get("content")
    has_content = isinstance(content, str) and (content or message.get("function_call"))
    return [
        ("message_missing_key", not {"role", "content"} <= message.keys()),
        ("message_unrecognized_key", not message.keys() <= KEYS),
        ("unrecognized_role", message.get("role") not in ROLES),
        ("missing_content", not has_content),
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
