"""Times previews over real HTTP: the first of a new worker (cold) and those after it (warm).

    python -m benchmarks.preview [--model FOLDER] [--rows 1000] [--warm 10]

One service (SQLite, Valkey, one worker, one thread per stage, no MLflow). The rows are
conversations of GSM8K; without --model the tokenizer has a small vocabulary. Prints each time from
before the POST to the whole answer, then the median of the warm ones with its range.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from tests.e2e.stack import Stack
from tests.support import services
from tests.support.models import save_tiny_llama

TEXT = Path(__file__).resolve().parents[1] / "examples" / "gsm8k" / "chat-train.jsonl"


def write_rows(path: Path, rows: int) -> None:
    """Conversations of GSM8K, again from the beginning where there are too few."""
    found = TEXT.read_text().splitlines()
    path.write_text("".join(f"{line}\n" for line in islice(cycle(found), rows)))


def preview(stack: Stack, spec: dict[str, Any], rows: int) -> tuple[float, dict[str, Any]]:
    """Seconds, and the answer."""
    begun = time.monotonic()
    answer = stack.http.post(
        "/v1/jobs/preview", json=spec, params={"rows": rows, "wait": 60}, timeout=90
    )
    seconds = time.monotonic() - begun
    found: dict[str, Any] = answer.raise_for_status().json()
    if found["state"] != "succeeded":
        raise SystemExit(f"{found['state']}: {found['failure']}")
    return seconds, found


def measure(stack: Stack, spec: dict[str, Any], rows: int, warm: int) -> None:
    seconds, found = preview(stack, spec, rows)
    split = found["result"]["splits"]["train"]
    print(f"{split['rows_read']:,} rows, {split['tokens']['total']:,} tokens", flush=True)
    print(f"cold  {seconds:.2f} s", flush=True)
    times = []
    for _ in range(warm):
        seconds, _found = preview(stack, spec, rows)
        times.append(seconds)
        print(f"warm  {seconds:.2f} s", flush=True)
    print(
        f"warm, median of {warm}: {statistics.median(times):.2f} s ({min(times):.2f} to "
        f"{max(times):.2f}); load {os.getloadavg()[0]:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--warm", type=int, default=10)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        services.broker(services.valkey_binary()) as broker,
    ):
        folder = Path(name)
        model = given.model or save_tiny_llama(folder / "model", positions=1024)
        write_rows(folder / "train.jsonl", given.rows)
        (folder / "home").mkdir()
        variables = {"FINETUNE_REDIS_URL": broker, "FINETUNE_MODEL_ROOTS": str(model)}
        stack = Stack(folder / "home", variables)
        try:
            stack.start()
            services.wait_until(
                lambda: stack.http.get("/v1/workers").json()["data"], 60, "the worker"
            )
            spec = {
                "task": {"type": "chat", "packing": "bfd"},
                "model": {"name_or_path": str(model)},
                "dataset": {"source": "upload", "train": stack.upload(folder / "train.jsonl")},
            }
            measure(stack, spec, given.rows, given.warm)
        finally:
            stack.stop()


if __name__ == "__main__":
    sys.exit(main())
