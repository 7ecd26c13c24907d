"""The steps of OpenAI's cookbook, call by call, with data of our own.

Of `How_to_finetune_chat_models` for `supervised`, and of
`Fine_tuning_direct_preference_optimization_guide` for `dpo`, which recommends to begin with a
supervised job. Only the model is another one. The guide asks for its answers through `responses`
and scores them with `evals`, which this service does not have: here they are conversations.
"""

import asyncio
import csv
import io
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import openai

ENDED = ("succeeded", "failed", "cancelled")
SYSTEM = "You name the colours in a sentence."
COLOURS = ("red", "green", "blue", "black", "white", "grey", "brown")
THINGS = ("door", "coat", "boat", "kite", "lamp")


def check(client: openai.OpenAI, model: str) -> None:
    run_dpo(client, run_supervised(client, model))


def question(number: int) -> dict[str, str]:
    colour, thing = COLOURS[number % len(COLOURS)], THINGS[number % len(THINGS)]
    return {"role": "user", "content": f"Sentence: the {thing} is {colour}. Colours: "}


def conversation(number: int) -> dict[str, Any]:
    answer = {"role": "assistant", "content": json.dumps([COLOURS[number % len(COLOURS)]])}
    return {"messages": [{"role": "system", "content": SYSTEM}, question(number), answer]}


def run_supervised(client: openai.OpenAI, model: str) -> str:
    """The new model."""
    training, validation = (
        upload_from_disk(client, f"{name}.jsonl", [conversation(n) for n in numbers])
        for name, numbers in (("training", range(30)), ("validation", range(30, 40)))
    )
    job = client.fine_tuning.jobs.create(
        training_file=training, validation_file=validation, model=model, suffix="colours"
    )
    assert job.status == "validating_files"
    done = waited(client, job.id)
    assert done.trained_tokens is not None
    events = client.fine_tuning.jobs.list_events(job.id).data
    events.reverse()
    said = [event.message for event in events]
    assert all(isinstance(message, str) and message for message in said)
    numbers = [event.data for event in events if event.type == "metrics"]
    assert any("train_loss" in each for each in numbers if isinstance(each, dict))
    check_results(client, done.result_files[0])
    answer = client.chat.completions.create(
        model=done.fine_tuned_model,
        messages=conversation(50)["messages"][:2],
        temperature=0,
        max_tokens=20,
    )
    assert isinstance(answer.choices[0].message.content, str)
    return str(done.fine_tuned_model)


def upload_from_disk(client: openai.OpenAI, name: str, rows: list[Any]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        with path.open("rb") as file:
            return client.files.create(file=file, purpose="fine-tune").id


def waited(client: openai.OpenAI, job: str) -> Any:
    deadline = time.monotonic() + 180
    while (found := client.fine_tuning.jobs.retrieve(job)).status not in ENDED:
        assert time.monotonic() < deadline, found
        time.sleep(0.3)
    assert found.status == "succeeded", found.error
    assert found.fine_tuned_model
    return found


def check_results(client: openai.OpenAI, file: str) -> None:
    """The columns that OpenAI documents, with losses of both files."""
    about = client.files.retrieve(file)
    assert about.purpose == "fine-tune-results"
    rows = list(csv.DictReader(io.StringIO(client.files.content(about.id).text)))
    assert list(rows[0]) == [
        "step",
        "train_loss",
        "train_accuracy",
        "valid_loss",
        "valid_mean_token_accuracy",
    ]
    for name in ("train_loss", "valid_loss", "valid_mean_token_accuracy"):
        assert any(row[name] for row in rows), name


def pair(number: int) -> dict[str, Any]:
    asked = [{"role": "system", "content": SYSTEM}, question(number)]
    return {
        "input": {"messages": asked},
        "preferred_output": [{"role": "assistant", "content": "Gladly: it is bright!"}],
        "non_preferred_output": [{"role": "assistant", "content": "no"}],
    }


def run_dpo(client: openai.OpenAI, model: str) -> None:
    pairs = [pair(number) for number in range(40)]
    training, validation = (
        upload_from_memory(client, name, rows)
        for name, rows in (("train.jsonl", pairs[:32]), ("val.jsonl", pairs[32:36]))
    )
    method: Any = {
        "type": "dpo",
        "dpo": {"hyperparameters": {"n_epochs": 2, "beta": 0.1, "batch_size": 8}},
    }
    job: Any = client.fine_tuning.jobs.create(
        model=model, training_file=training, validation_file=validation, method=method
    )
    assert job.method.dpo.hyperparameters.to_dict() == {
        "n_epochs": 2,
        "beta": 0.1,
        "batch_size": 8,
        "learning_rate_multiplier": 1.0,
    }
    done = waited(client, job.id)
    asked = [row["input"]["messages"] for row in pairs[36:]]
    for name in (model, done.fine_tuned_model):
        answers = asyncio.run(answered(name, asked))
        assert [type(answer) for answer in answers] == [str] * len(asked)


def upload_from_memory(client: openai.OpenAI, name: str, rows: list[Any]) -> str:
    """A file that has a name, and no end of the last line."""
    file = io.BytesIO("\n".join(json.dumps(row) for row in rows).encode())
    file.name = name
    return client.files.create(file=file, purpose="fine-tune").id


async def answered(model: str, asked: list[Any]) -> list[str | None]:
    """Several at a time, as the guide asks."""
    turns = asyncio.Semaphore(2)

    async def ask(messages: Any) -> str | None:
        async with turns:
            found = await client.chat.completions.create(
                model=model, messages=messages, temperature=0, max_tokens=20
            )
        return found.choices[0].message.content

    async with openai.AsyncOpenAI() as client:
        return list(await asyncio.gather(*(ask(messages) for messages in asked)))
