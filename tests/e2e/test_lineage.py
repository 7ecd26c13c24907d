"""Masked LM on a corpus, a promoted checkpoint, a push of the finished model, then question
answering that begins with it: as a user does it, with a worker that is killed on the way."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard, snapshot_download
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM

from tests.e2e.conftest import TOKEN
from tests.e2e.jobs import ended_run, job_body
from tests.e2e.stack import Stack
from tests.support.hub import HubDouble
from tests.support.processes import is_alive
from tests.support.servers.services import wait_until

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.long,
    pytest.mark.parametrize("stack", ["sqlite-valkey"], indirect=True),
]
MODEL_ID = "org/corpus-model"


@pytest.fixture(scope="module")
def corpus_job(stack: Stack, tiny_model: Path, squad: dict[str, Path]) -> dict[str, Any]:
    """A masked LM on the texts that will be asked about; its checkpoints are at 2, 4 and 6."""
    articles = json.loads(squad["train"].read_text())["data"]
    texts = {paragraph["context"] for article in articles for paragraph in article["paragraphs"]}
    corpus = squad["train"].with_name("corpus.txt")
    corpus.write_text("".join(text.replace(". ", ".\n") + "\n" for text in sorted(texts)))
    body = {
        "name": "corpus",
        "task": {"type": "masked-lm", "max_seq_length": 64},
        "model": {"name_or_path": str(tiny_model)},
        "dataset": {
            "source": "upload",
            "format": "text",
            "train": stack.upload(corpus),
            "validation_split_percentage": 20,
        },
        "training": {
            "max_steps": 6,
            "learning_rate": 1e-2,
            "logging_steps": 1,
            "eval_strategy": "steps",
            "eval_steps": 2,
            "save_steps": 2,
            "use_cpu": True,
        },
    }
    return stack.finish(stack.submit(body))


def post(stack: Stack, path: str, body: Any = None) -> dict[str, Any]:
    answer = stack.http.post(path, json=body)
    assert answer.is_success, answer.text
    page: dict[str, Any] = answer.json()
    return page


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(v, other[n]) for n, v in one.items())


@pytest.mark.heavy  # as the attack `lineage`
class TestLineage:
    def test_a_promotion_whose_worker_is_killed(
        self, stack: Stack, corpus_job: dict[str, Any]
    ) -> None:
        job_id = corpus_job["id"]
        assert corpus_job["result"]["model_step"] == 6
        asked = post(stack, f"/v1/jobs/{job_id}/checkpoints/2/promote")
        assert asked["follow_up"] == {"action": "promote", "step": 2}
        stack.wait_for(job_id, lambda page: page["stage"] == "train" and page["worker"] is not None)
        family = stack.parts["worker"].family()
        stack.parts["worker"].kill()
        wait_until(lambda: not any(is_alive(process) for process in family), 10, "their end")
        assert stack.job(job_id)["result"]["model_step"] == 6  # the earlier model stays until then
        again = post(stack, f"/v1/jobs/{job_id}/checkpoints/2/promote")
        assert again["follow_up"] == asked["follow_up"]
        stack.start_worker()
        job = stack.finish(job_id)

        assert (job["result"]["model_step"], job["result"]["steps"]) == (2, 6)
        checkpoint = stack.http.get(f"/v1/jobs/{job_id}/checkpoints/2").json()
        assert job["result"]["metrics"]["eval_loss"] == checkpoint["metrics"]["eval_loss"]
        folder = next((stack.home / "jobs" / job_id).glob("attempts/*/checkpoints/2"))
        assert same(weights(Path(job["result"]["model_path"])), weights(folder))
        types = [event["type"] for event in stack.pages(f"/v1/jobs/{job_id}/events")]
        assert types.count("promote_requested") == 1
        assert types.count("lease_expired") == 1

    def test_one_run_that_ends_with_the_promoted_model(
        self, stack: Stack, corpus_job: dict[str, Any], tmp_path: Path
    ) -> None:
        job = stack.job(corpus_job["id"])
        assert job["mlflow_url"] == corpus_job["mlflow_url"]
        client, run = ended_run(job)
        assert run.info.status == "FINISHED"
        assert run.data.metrics["result_eval_loss"] == job["result"]["metrics"]["eval_loss"]
        logged = client.download_artifacts(
            run.info.run_id, "model/model.safetensors", str(tmp_path)
        )
        promoted = weights(Path(job["result"]["model_path"]))
        assert same(load_file(logged), promoted)

    def test_the_finished_model_is_pushed_later(
        self, stack: Stack, corpus_job: dict[str, Any], hub: HubDouble, tmp_path: Path
    ) -> None:
        job_id = corpus_job["id"]
        assert (
            post(stack, f"/v1/jobs/{job_id}/publish", {"model_id": MODEL_ID})["state"] == "queued"
        )
        job = stack.finish(job_id)
        assert job["hub_url"] == f"{hub.endpoint}/{MODEL_ID}"
        assert job["spec"]["hub"] is None
        commits = len(hub.repo(MODEL_ID).commits)
        folder = Path(
            snapshot_download(MODEL_ID, endpoint=hub.endpoint, token=TOKEN, cache_dir=tmp_path)
        )
        assert same(weights(folder), weights(Path(job["result"]["model_path"])))
        AutoModelForMaskedLM.from_pretrained(folder)
        post(stack, f"/v1/jobs/{job_id}/publish", {"model_id": MODEL_ID})
        stack.finish(job_id)
        assert len(hub.repo(MODEL_ID).commits) == commits  # nothing is pushed twice

    def test_question_answering_begins_with_it(
        self,
        stack: Stack,
        corpus_job: dict[str, Any],
        tiny_model: Path,
        squad: dict[str, Path],
        hub: HubDouble,
        tmp_path: Path,
    ) -> None:
        base = corpus_job["id"]
        body = job_body(stack, tiny_model, squad, hub={"model_id": "org/answers"})
        body["model"] = {"job": base}
        body["training"] |= {"max_steps": 1, "learning_rate": 0.0, "eval_strategy": "no"}
        job_id = stack.submit(body)
        assert stack.http.delete(f"/v1/jobs/{base}").json()["code"] == "job_in_use"
        job = stack.finish(job_id)

        assert job["base_job"] == base
        assert stack.job(base)["derived_jobs"] == [job_id]
        begun = weights(Path(stack.job(base)["result"]["model_path"]))
        made = weights(Path(job["result"]["model_path"]))
        encoder = {name for name in begun if name.startswith("bert.")}
        assert encoder >= {"bert.embeddings.word_embeddings.weight"}
        assert all(torch.equal(made[name], begun[name]) for name in encoder)
        folder = Path(
            snapshot_download("org/answers", endpoint=hub.endpoint, token=TOKEN, cache_dir=tmp_path)
        )
        card = ModelCard.load(folder / "README.md")
        assert card.data.base_model == MODEL_ID
        assert base in card.text
        _, run = ended_run(job)
        assert run.data.tags["finetune.base_job"] == base
