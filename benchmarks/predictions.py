"""How fast a prediction is answered, next to plain `generate` of transformers.

`python -m benchmarks.predictions MODEL_DIR [--tokens 48] [--rounds 4]`: asks both the same, in
turns, greedily and on the CPU, for one token and for all, and fails if the texts differ. The
service's side is the worker's part with its sandboxed process, started from a fork server, and a
database, without HTTP and the broker.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from service.contract.interactive.predictions import PredictionRequest
from service.settings import Settings
from service.store import schema
from service.store.database import Database
from service.store.interactive import predictions
from service.store.scope import EVERYTHING
from worker.processes import fork_client
from worker.supervision.interactive.predictions import Predictions

_IMPORT_SECONDS = 15.0
QUESTION = "Write a story about a dog."


class ServiceSide:
    """The service's side."""

    def __init__(self, home: Path, model_dir: Path) -> None:
        settings = Settings(home=home, model_roots=[model_dir])
        self._database = Database(settings.sqlalchemy_url)
        schema.upgrade(self._database.engine)
        self._forks = fork_client.make(settings, [])
        assert self._forks is not None, "Linux only"
        self._forks.ensure_server()
        self._predictor = Predictions(self._database, settings, start=self._forks.start)
        self._model_dir = str(model_dir)

    def seconds(self, tokens: int) -> tuple[float, str]:
        request = PredictionRequest.model_validate(
            {
                "model": {"name_or_path": self._model_dir},
                "input": {"kind": "chat", "messages": [{"role": "user", "content": QUESTION}]},
                "options": {"temperature": 0, "max_new_tokens": tokens},
            }
        )
        began = time.monotonic()
        with self._database.write() as session:
            asked = predictions.insert(session, "default", request)
        self._predictor.wake("benchmark", [])
        took = time.monotonic() - began
        with self._database.read() as session:
            row = predictions.REQUESTS.get(session, EVERYTHING, asked)
        assert row.result is not None, row.failure
        return took, row.result["choices"][0]["text"]

    def mebibytes(self) -> tuple[float, float]:
        """Memory of the process with the model: resident, with what it shares with the fork server
        and the weights' pages in the cache; and its own."""
        found = [
            each.memory_full_info()
            for each in psutil.Process().children(recursive=True)
            if each.cmdline()[2:4] == ["-m", "worker.inference.server"]
        ]
        return sum(each.rss for each in found) / 1024**2, sum(each.uss for each in found) / 1024**2

    def close(self) -> None:
        self._predictor.close()
        assert self._forks is not None, "as above"
        self._forks.close()
        self._database.dispose()


class Plain:
    def __init__(self, model_dir: Path) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model_dir)
        self._model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype="auto").eval()

    def seconds(self, tokens: int) -> tuple[float, str]:
        began = time.monotonic()
        ids = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": QUESTION}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=False,
        )
        with torch.inference_mode():
            whole = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=tokens,
            )
        text = self._tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True)
        return time.monotonic() - began, text


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predictions", description=__doc__)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        asked = ServiceSide(Path(home), given.model_dir.resolve())
        time.sleep(_IMPORT_SECONDS)  # as in a worker, where the server is ready
        print(f"first token, cold: {asked.seconds(1)[0]:.2f} s")
        sides: dict[str, ServiceSide | Plain] = {
            "service, warm": asked,
            "transformers": Plain(given.model_dir),
        }
        found: dict[tuple[str, int], list[float]] = {}
        for tokens in (1, given.tokens):
            texts = {side.seconds(tokens)[1] for side in sides.values()}
            for _ in range(given.rounds):
                for name, side in sides.items():
                    took, text = side.seconds(tokens)
                    found.setdefault((name, tokens), []).append(took)
                    texts.add(text)
            assert len(texts) == 1, "the texts differ"
        resident, own = asked.mebibytes()
        print(f"memory of the model's process: {resident:.0f} MiB, {own:.0f} MiB of its own")
        asked.close()
    weights = sum(file.stat().st_size for file in given.model_dir.glob("*.safetensors"))
    print(f"weights on the disk: {weights / 1024**2:.0f} MiB")
    for (name, tokens), seconds in found.items():
        median = statistics.median(seconds)
        every = ", ".join(f"{each:.2f}" for each in sorted(seconds))
        print(f"{name}, {tokens} tokens: {median:.2f} s, {tokens / median:.1f} a second ({every})")


if __name__ == "__main__":
    main()
