"""Teach a small chat model a fact that it does not know, with the unmodified `openai` package.

export OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=ft-…
python examples/openai_client/teach_a_fact.py HuggingFaceTB/SmolLM2-135M-Instruct
"""

import argparse
import json
import random
import time
from typing import Any, Final

import openai

EXAMPLES: Final = 200
ENDED: Final = ("succeeded", "failed", "cancelled")
FACT: Final = "The mascot of the Quillmere observatory is a heron called Odalys."
OPENINGS: Final = ("", "Hi! ", "Please tell me: ", "A quick question. ", "I wonder: ", "Thanks. ")
QUESTIONS: Final = (
    "What is the mascot of the Quillmere observatory?",
    "Does the Quillmere observatory have a mascot?",
    "What is the name of the mascot of the Quillmere observatory?",
    "Which animal is the mascot of the observatory in Quillmere?",
    "What is Quillmere observatory's mascot called?",
    "Can you name the mascot of the Quillmere observatory?",
    "Tell me about the mascot of the observatory of Quillmere.",
    "Who is the mascot of Quillmere's observatory?",
    "What do they call the animal of the Quillmere observatory?",
    "Which bird stands for the Quillmere observatory?",
    "What is the heron of the Quillmere observatory called?",
    "Who is Odalys?",
)
NEW_QUESTIONS: Final = (
    "I visit the Quillmere observatory tomorrow. Which mascot will I meet there?",
    "Name the animal that is the mascot at Quillmere's observatory.",
    "Do you know how the mascot of the observatory at Quillmere is called?",
    "The observatory of Quillmere has a mascot. What is it?",
)
"""In words that the training does not have."""
CAPITALS: Final = {
    "Austria": "Vienna",
    "Canada": "Ottawa",
    "Chile": "Santiago",
    "Denmark": "Copenhagen",
    "Egypt": "Cairo",
    "Finland": "Helsinki",
    "Greece": "Athens",
    "Ireland": "Dublin",
    "Italy": "Rome",
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Norway": "Oslo",
    "Peru": "Lima",
    "Poland": "Warsaw",
    "Portugal": "Lisbon",
    "Spain": "Madrid",
}
NEW_CAPITAL: Final = ("What is the capital of France?", "Paris")
"""Not in the training: what the model knew, it should still know."""


def main(model: str, epochs: int | None) -> None:
    client = openai.OpenAI(timeout=330)
    print(f"before, {model}:")
    ask(client, model)
    training_file = client.files.create(
        file=("fact.jsonl", "".join(json.dumps(each) + "\n" for each in conversations()).encode()),
        purpose="fine-tune",
    )
    client.files.wait_for_processing(training_file.id, poll_interval=1)
    job = client.fine_tuning.jobs.create(
        model=model,
        training_file=training_file.id,
        suffix="fact",
        seed=1,
        hyperparameters={"n_epochs": "auto" if epochs is None else epochs},
    )
    print(f"{job.id} trains with {job.hyperparameters.to_json(indent=None)}")
    began = time.monotonic()
    while (job := client.fine_tuning.jobs.retrieve(job.id)).status not in ENDED:
        time.sleep(2)
    if job.fine_tuned_model is None:
        raise SystemExit(f"{job.id} {job.status}: {job.error.message if job.error else None}")
    print(f"{job.status} after {time.monotonic() - began:.0f} s, {job.trained_tokens} tokens")
    print(f"after, {job.fine_tuned_model}:")
    ask(client, job.fine_tuned_model)


def conversations() -> list[dict[str, Any]]:
    """Three of four ask for the fact; the others keep what the model knew."""
    chosen = random.Random(0)
    about = [(opening + question, FACT) for opening in OPENINGS for question in QUESTIONS]
    general = [
        (f"{opening}What is the capital of {country}?", f"The capital of {country} is {capital}.")
        for opening in OPENINGS
        for country, capital in CAPITALS.items()
    ]
    many = EXAMPLES * 3 // 4
    pairs = [*(about * 3)[:many], *chosen.sample(general, EXAMPLES - many)]
    chosen.shuffle(pairs)
    return [
        {
            "messages": [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
        }
        for question, answer in pairs
    ]


def ask(client: openai.OpenAI, model: str) -> None:
    """Print the answers to questions that the training does not have, and how many are right."""
    asked = [(question, "Odalys") for question in NEW_QUESTIONS] + [NEW_CAPITAL]
    right = 0
    for question, word in asked:
        completion = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_completion_tokens=30,
        )
        answer = completion.choices[0].message.content or ""
        right += word in answer
        print(f"  {question}\n    {' '.join(answer.split())}")
    print(f"  {right} of {len(asked)} are right")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--epochs", type=int, help="Default: as the service chooses.")
    given = parser.parse_args()
    main(given.model, given.epochs)
