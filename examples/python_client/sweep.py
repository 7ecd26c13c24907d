"""Train with several learning rates at once, follow all of them, and keep the best.

python examples/python_client/sweep.py [MODEL]
"""

import asyncio
import sys
from pathlib import Path
from typing import Final

from finetune_client import AsyncClient, AsyncJob

DATA: Final = Path(__file__).resolve().parents[1] / "classification"
RATES: Final = (5e-5, 2e-4, 1e-3)


async def main(model: str) -> None:
    async with AsyncClient() as client:
        file = await client.files.create(DATA / "topics-train.jsonl")
        jobs = [await submit(client, model, file.id, rate) for rate in RATES]
        results = await asyncio.gather(*(accuracy(job) for job in jobs))
        for rate, result in zip(RATES, results, strict=True):
            print(f"{rate:g}: {result:.3f}")
        best = jobs[results.index(max(results))]
        print(f"{best.id} is the best")


async def submit(client: AsyncClient, model: str, file_id: str, rate: float) -> AsyncJob:
    return await client.jobs.create(
        name=f"topics-{rate:g}",
        task={"type": "text-classification", "max_seq_length": 64},
        model={"name_or_path": model},
        dataset={"source": "upload", "train": file_id, "validation_split_percentage": 20},
        training={"max_steps": 20, "learning_rate": rate, "eval_strategy": "epoch"},
    )


async def accuracy(job: AsyncJob) -> float:
    """Of the last evaluation; what happens to the job is printed as it happens."""
    async for event in job.stream():
        print(job.name, event.type)
    await job.refresh()
    return float(job.raise_for_failure().last_metrics["eval_accuracy"])


if __name__ == "__main__":
    asyncio.run(
        main(sys.argv[1] if len(sys.argv) > 1 else "sentence-transformers/all-MiniLM-L6-v2")
    )
