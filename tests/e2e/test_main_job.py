"""A question-answering job from POST to the Hub, over real HTTP, Celery and MLflow."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi, ModelCard, snapshot_download
from peft import PeftModel
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from chaos.faults.pace import Pace
from tests.e2e.conftest import TOKEN
from tests.e2e.jobs import ended_run, job_body, losses, using
from tests.e2e.stack import Stack
from tests.support.hub import HubDouble
from tests.support.servers.services import wait_until
from worker.storage.atomic_dir import file_sha256

pytestmark = [pytest.mark.timeout(400), pytest.mark.long]


@pytest.fixture(scope="module")
def finished(stack: Stack, tiny_model: Path, squad: dict[str, Path]) -> dict[str, Any]:
    model_id = f"org/squad-{stack.home.name.rpartition('-')[0] or stack.home.name}"
    body = job_body(stack, tiny_model, squad, hub={"model_id": model_id, "license": "mit"})
    return stack.finish(stack.submit(body))


class TestMainJob:
    def test_the_page_shows_the_whole_story(self, finished: dict[str, Any]) -> None:
        assert finished["state"] == "succeeded"
        assert finished["progress"]["step"] == finished["progress"]["of"]
        assert finished["failure"] is None
        metrics = finished["result"]["metrics"]
        assert {"eval_exact_match", "eval_f1", "eval_loss", "eval_best_f1"} <= set(metrics)
        assert set(finished["result"]["baseline"]) >= {"eval_exact_match", "eval_f1"}
        assert [stage["stage"] for stage in finished["stages"]] == ["prepare", "train", "publish"]

    def test_a_preview_finds_what_the_job_found(
        self, stack: Stack, finished: dict[str, Any]
    ) -> None:
        answer = stack.http.post(
            "/v1/jobs/preview", json=finished["spec"], params={"rows": 1000, "wait": 25}
        )
        assert answer.status_code == 200, answer.text
        previewed = answer.json()["result"]
        report = finished["result"]["data_report"]["splits"]
        for split, counts in finished["result"]["splits"].items():
            assert previewed["splits"][split]["features"] == counts["features"]
            assert previewed["splits"][split]["tokens"] == report[split]["tokens"]
        assert previewed["epoch"]["is_exact"]
        assert previewed["epoch"]["total_steps"] == finished["progress"]["of"]
        # The worker removes the folder after the answer.
        folders = (stack.home / "jobs").glob
        wait_until(lambda: not any(folders("preview-*")), 60, "the removal of the folder")

    def test_events_are_numbered_without_gaps(self, stack: Stack, finished: dict[str, Any]) -> None:
        events = stack.pages(f"/v1/jobs/{finished['id']}/events")
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert events[0]["type"] == "submitted"

    def test_each_step_has_one_loss(self, stack: Stack, finished: dict[str, Any]) -> None:
        rows = stack.pages(f"/v1/jobs/{finished['id']}/metrics")
        assert [row["step"] for row in rows if "loss" in row["values"]] == list(range(1, 9))
        assert [row["step"] for row in rows if row["kind"] == "eval"] == [0, 4, 8]

    def test_the_machine_was_watched(self, stack: Stack, finished: dict[str, Any]) -> None:
        rows = stack.pages(f"/v1/jobs/{finished['id']}/metrics")
        system = [row for row in rows if row["kind"] == "system"]
        assert len(system) >= 3, "four samples each second of three stages"
        assert max(row["values"]["memory_rss_bytes"] for row in system) > 2**27

    def test_mlflow_has_the_same_numbers(self, stack: Stack, finished: dict[str, Any]) -> None:
        client, run = ended_run(finished)
        assert run.info.status == "FINISHED"
        assert run.data.params["max_steps"] == "8"
        history = client.get_metric_history(run.info.run_id, "loss")
        assert sorted((m.step, m.value) for m in history) == losses(stack, finished["id"])

    def test_the_model_comes_back_from_the_hub(
        self, hub: HubDouble, finished: dict[str, Any], tmp_path: Path
    ) -> None:
        model_id = finished["hub_url"].rpartition(f"{hub.endpoint}/")[2].split("/tree/")[0]
        api = HfApi(endpoint=hub.endpoint, token=TOKEN)
        assert api.model_info(model_id).private
        folder = snapshot_download(model_id, endpoint=hub.endpoint, token=TOKEN, cache_dir=tmp_path)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForQuestionAnswering.from_pretrained(folder)
        inputs = tokenizer("Who wrote it?", "It was written by Ada Lovelace.", return_tensors="pt")
        with torch.no_grad():
            start = int(model(**inputs).start_logits.argmax())
        assert 0 <= start < inputs["input_ids"].shape[1]
        card = ModelCard.load(Path(folder) / "README.md")
        assert card.data.eval_results is not None
        reported = {result.metric_type: result.metric_value for result in card.data.eval_results}
        assert reported["f1"] == pytest.approx(finished["result"]["metrics"]["eval_f1"])

    def test_artifacts_can_be_downloaded(self, stack: Stack, finished: dict[str, Any]) -> None:
        artifacts = {a["name"]: a for a in stack.pages(f"/v1/jobs/{finished['id']}/artifacts")}
        assert {"model/model.safetensors", "model/README.md", "predictions.json"} <= set(artifacts)
        answer = stack.http.get(f"/v1/jobs/{finished['id']}/artifacts/predictions.json")
        assert len(answer.json()) == 24
        assert len(answer.content) == artifacts["predictions.json"]["bytes"]

    def test_the_token_is_nowhere(self, stack: Stack, finished: dict[str, Any]) -> None:
        job_dir = stack.home / "jobs" / finished["id"]
        for path in job_dir.rglob("*"):
            if path.is_file():
                assert TOKEN.encode() not in path.read_bytes(), path
        for path in stack.home.glob("*.log"):
            assert TOKEN.encode() not in path.read_bytes(), path
        for route in ("", "/events", "/metrics", "/logs"):
            assert TOKEN not in stack.http.get(f"/v1/jobs/{finished['id']}{route}").text


@pytest.mark.parametrize("stack", ["postgres-redis"], indirect=True)
class TestOtherModes:
    """Jobs that use the finished model as it is, by `model.job`."""

    def test_an_evaluation_finds_the_same_numbers(
        self, stack: Stack, squad: dict[str, Path], finished: dict[str, Any]
    ) -> None:
        validation = {"validation": stack.upload(squad["validation"])}
        body = using(finished, "evaluate", validation)
        body["training"]["max_steps"] = 8
        job = stack.finish(stack.submit(body))
        assert job["state"] == "succeeded", job["failure"]
        wanted = {"eval_loss", "eval_exact_match", "eval_f1", "eval_best_f1"}
        metrics = {name: job["result"]["metrics"][name] for name in wanted}
        assert metrics == {name: finished["result"]["metrics"][name] for name in wanted}
        result = job["result"]
        assert result["model_path"] is result["weights_sha256"] is job["hub_url"] is None
        assert list(result["splits"]) == ["validation"]
        (row,) = [
            row for row in stack.pages(f"/v1/jobs/{job['id']}/metrics") if row["kind"] == "eval"
        ]
        assert row["step"] == 0
        assert row["values"]["eval_f1"] == metrics["eval_f1"]
        made, before = (
            {a["name"]: a["sha256"] for a in stack.pages(f"/v1/jobs/{each['id']}/artifacts")}
            for each in (job, finished)
        )
        assert made["predictions.json"] == before["predictions.json"]
        assert not any(name.startswith("model/") for name in made)
        client, run = ended_run(job)
        assert run.data.metrics["eval_f1"] == metrics["eval_f1"]
        assert run.data.params["mode"] == "evaluate"
        assert "predictions.json" in {file.path for file in client.list_artifacts(run.info.run_id)}

    def test_a_checkpoint_has_the_scores_of_its_step(
        self, stack: Stack, squad: dict[str, Path], finished: dict[str, Any]
    ) -> None:
        validation = {"validation": stack.upload(squad["validation"])}
        body = using(finished, "evaluate", validation, checkpoint=4)
        job = stack.finish(stack.submit(body))
        rows = stack.pages(f"/v1/jobs/{finished['id']}/metrics")
        (then,) = [row["values"] for row in rows if row["kind"] == "eval" and row["step"] == 4]
        for name in ("eval_loss", "eval_f1", "eval_exact_match"):
            assert job["result"]["metrics"][name] == then[name]

    def test_predictions_for_questions_without_answers(
        self, stack: Stack, squad: dict[str, Path], finished: dict[str, Any], tmp_path: Path
    ) -> None:
        source = json.loads(squad["validation"].read_text())
        for article in source["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    del question["answers"]
        questions = tmp_path / "questions.json"
        questions.write_text(json.dumps(source))
        body = using(finished, "predict", {"test": stack.upload(questions)})
        job = stack.finish(stack.submit(body))
        assert job["state"] == "succeeded", job["failure"]
        route = f"/v1/jobs/{job['id']}/artifacts/test/predictions.json"
        known = f"/v1/jobs/{finished['id']}/artifacts/predictions.json"
        assert stack.http.get(route).json() == stack.http.get(known).json()


def is_pushed(hub: HubDouble, model_id: str) -> bool:
    """Whether something came after the commit that makes the repository."""
    repo = hub.find("model", model_id)
    return repo is not None and len(repo.commits) > 1


@pytest.mark.parametrize("stack", ["postgres-redis"], indirect=True)
@pytest.mark.heavy  # without a stack: tests/supervision/test_checkpoint_pushes.py
class TestEverySave:
    def test_the_repository_grows_while_training_and_ends_as_the_model(
        self, stack: Stack, tiny_model: Path, squad: dict[str, Path], hub: HubDouble, tmp_path: Path
    ) -> None:
        model_id = f"org/every-{stack.home.name.rpartition('-')[0] or stack.home.name}"
        body = job_body(stack, tiny_model, squad)
        body["hub"] = {"model_id": model_id, "strategy": "every_save"}
        body["training"] |= {"eval_strategy": "no", "max_steps": 240, "save_steps": 40}
        job_id = stack.submit(body)
        # The first save is pushed however fast the machine trains: the training waits for that.
        with Pace(stack.parts["worker"], stack.home / "jobs" / job_id, limit=40):
            wait_until(lambda: is_pushed(hub, model_id), 300, "the push of the first save")
        job = stack.finish(job_id)
        repo = hub.repo(model_id)
        titles = [commit.title for commit in repo.commits[1:]]
        saves = [f"Training in progress, step {step}" for step in range(40, 240, 40)]
        assert titles[0] == saves[0]
        assert titles[:-1] == [title for title in saves if title in titles]
        assert titles[-1] == f"Fine-tuned model of {job['id']}"
        for number, commit in enumerate(repo.commits[1:]):
            folder = tmp_path / str(number)
            snapshot_download(
                model_id, revision=commit.sha, endpoint=hub.endpoint, token=TOKEN, local_dir=folder
            )
            AutoTokenizer.from_pretrained(folder)
            _, report = AutoModelForQuestionAnswering.from_pretrained(
                folder, output_loading_info=True
            )
            assert not any(report.values()), report
        sums = [file_sha256(tmp_path / str(n) / "model.safetensors") for n in range(len(titles))]
        assert sums[-1] == job["result"]["weights_sha256"]
        assert len(set(sums)) == len(sums)
        log = (stack.home / "jobs" / job["id"] / "job.log").read_text()
        assert TOKEN not in log


@pytest.mark.parametrize("stack", ["postgres-redis"], indirect=True)
class TestAdapter:
    """A LoRA job: what is pushed is the adapter, by whose card anyone finds the base model."""

    @pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
    def test_from_post_to_the_hub(
        self, stack: Stack, tiny_model: Path, squad: dict[str, Path], hub: HubDouble, tmp_path: Path
    ) -> None:
        model_id = f"org/adapter-{stack.home.name.rpartition('-')[0] or stack.home.name}"
        peft = {"method": "lora", "r": 4, "target_modules": "all-linear"}
        body = job_body(stack, tiny_model, squad, peft=peft, hub={"model_id": model_id})
        job = stack.finish(stack.submit(body))
        assert job["state"] == "succeeded"
        folder = Path(
            snapshot_download(model_id, endpoint=hub.endpoint, token=TOKEN, cache_dir=tmp_path)
        )
        assert (folder / "adapter_model.safetensors").stat().st_size < 2**17
        assert not (folder / "model.safetensors").exists()
        base = AutoModelForQuestionAnswering.from_pretrained(tiny_model)
        model: Any = PeftModel.from_pretrained(base, str(folder))
        assert model.peft_config["default"].r == 4
        trained = [value for name, value in model.named_parameters() if "lora_B" in name]
        assert all(value.abs().max() > 0 for value in trained)
        _, run = ended_run(job)
        assert (run.data.params["peft.method"], run.data.params["peft.r"]) == ("lora", "4")


@pytest.mark.parametrize("stack", ["postgres-redis"], indirect=True)
class TestSecondJob:
    def test_prepared_data_is_shared(
        self, stack: Stack, tiny_model: Path, squad: dict[str, Path], finished: dict[str, Any]
    ) -> None:
        job = stack.finish(stack.submit(job_body(stack, tiny_model, squad)))
        messages = [
            event["data"].get("message", "")
            for event in stack.pages(f"/v1/jobs/{job['id']}/events")
            if event["type"] == "notice"
        ]
        assert any("prepared" in message for message in messages), messages
        assert job["result"]["weights_sha256"] == finished["result"]["weights_sha256"]
        assert job["result"]["metrics"]["eval_f1"] == finished["result"]["metrics"]["eval_f1"]
