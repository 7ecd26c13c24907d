"""Teach a model which answers people prefer (DPO) with the unmodified `openai` package.

export OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=ft-…
python examples/openai_client/dpo.py pairs.jsonl HuggingFaceTB/SmolLM2-135M-Instruct
"""

import sys
import time
from pathlib import Path
from typing import Final

import openai

ENDED: Final = ("succeeded", "failed", "cancelled")


def main(file: Path, model: str) -> None:
    client = openai.OpenAI()
    pairs = client.files.create(file=file, purpose="fine-tune")
    job = client.fine_tuning.jobs.create(
        model=model,
        training_file=pairs.id,
        method={
            "type": "dpo",
            "dpo": {"hyperparameters": {"n_epochs": 1, "beta": 0.1}},
        },
    )
    while (job := client.fine_tuning.jobs.retrieve(job.id)).status not in ENDED:
        time.sleep(2)
    for checkpoint in client.fine_tuning.jobs.checkpoints.list(job.id):
        print(checkpoint.fine_tuned_model_checkpoint, checkpoint.metrics.train_loss)
    if job.error is not None and job.error.message:
        raise SystemExit(job.error.message)
    print(f"{job.status}: {job.fine_tuned_model}")
    if job.fine_tuned_model is not None:
        question = "Tom has 3 bags of 4 apples. How many apples has he?"
        answer = client.chat.completions.create(
            model=job.fine_tuned_model,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=200,
            stream=True,
        )
        print("answer: ", *(chunk.choices[0].delta.content or "" for chunk in answer), sep="")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
