"""What MLflow's page of a run shows of its job: description, origin, data, model, charts."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from service import __version__
from service.store.database import Database, clock
from service.store.tables.files import FileRow
from service.store.tracking.jobs import load
from tests.support.factories import make_spec
from tests.tracking.conftest import PREPARED, Job, MakeJob
from tests.tracking.support import TRAINED, train
from worker.tracking import base_model_config, run_content, run_description
from worker.tracking.trackers import MlflowTracker

NOTE = "mlflow.note.content"
FILES = {"file-1": "train.csv", "file-2": "dev`1.csv", "file-3": "test.csv"}


def uploaded(database: Database, make: MakeJob, **spec: Any) -> Job:
    """A job with three uploads; one of them is unknown by now."""
    with database.write() as session:
        for number, (file_id, name) in enumerate(list(FILES.items())[:2]):
            row = FileRow(id=file_id, filename=name, purpose="f", bytes=1)
            row.sha256, row.created_at = str(number) * 64, clock(session)
            session.add(row)
    data = {
        "source": "upload",
        "train": "file-1",
        "validation": {"dev": "file-2"},
        "test": "file-3",
    }
    return make(name="my job", dataset=data, **spec)


@pytest.fixture
def job(database: Database, make: MakeJob) -> Job:
    return uploaded(database, make)


class TestDescription:
    def test_while_the_job_runs(self, job: Job) -> None:
        job.ship(MlflowTracker(job.tracker._uri, public_url="http://here:8000/"))
        run = job.run
        assert run.data.tags[NOTE].splitlines() == [
            "`my job`",
            "",
            f"- Job: [`{job.id}`](http://here:8000/v1/jobs/{job.id})",
            "- Task: `question-answering`, mode `train`",
            "- Model: `org/model`",
            "- Data, train: `train.csv`",
            "- Data, validation.dev: ``dev`1.csv``",
            "- Data, test: `file-3`",
        ]

    def test_of_a_job_that_has_succeeded(self, job: Job) -> None:
        job.ship()
        numbers = {"eval_dev_f1": 81.254, "eval_dev_runtime": 2.0, "test_f1": 0.0000123}
        trained = TRAINED | {"metrics": numbers, "metric_for_best_model": "eval_dev_f1"}
        job.end("succeeded", results={"train": trained, "publish": {"hub_url": "https://h/m"}})
        assert job.ship()
        note = job.run.data.tags[NOTE].splitlines()
        assert note[3:5] == [
            "- Result: succeeded, the model is that of step 15 of 20, `eval_dev_f1` 81.25",
            "- On the Hub: <https://h/m>",
        ]
        assert note[-4:] == [
            "",
            "| metric | validation.dev | test |",
            "|---|---|---|",
            "| `f1` | 81.25 | 1.23e-05 |",
        ]

    def test_of_a_job_that_has_failed_until_it_is_retried(self, job: Job) -> None:
        job.ship()
        running = job.run.data.tags[NOTE]
        message = "Row 2\nsays <b>[x](http://evil)</b>"
        failure = {"code": "bad_rows", "message": message, "action": "Fix row 2."}
        job.end("failed", failure=failure)
        assert job.ship()
        note = job.run.data.tags[NOTE].splitlines()
        assert note[3:5] == [
            r"- Failed: `bad_rows`. Row 2 says \<b\>\[x\](http\://evil)\</b\>",
            "- What to do: Fix row 2.",
        ]
        job.update(state="queued", ended_at=None, failure=None, tracking_final=False)
        job.ship()
        assert job.run.data.tags[NOTE] == running

    def test_one_that_was_edited_in_mlflow_is_kept(self, job: Job) -> None:
        job.ship()
        job.client.set_tag(job.run.info.run_id, NOTE, "edited")
        job.end("succeeded", results={"train": TRAINED})
        assert job.ship()
        assert job.run.data.tags[NOTE] == "edited"

    def test_without_an_address_there_is_no_link(self, make: MakeJob) -> None:
        files = [f"/data/part-{number}.json" for number in range(7)]
        dataset = {"source": "path", "train": files}
        job = make(dataset=dataset)
        spec = make_spec(dataset=dataset)
        with job.database.read() as session:
            tracked = load(session, job.id)
        assert tracked is not None
        subject = run_description.Subject("Job", job.id)
        note = run_description.with_link(run_description.write(tracked, spec, {}), subject, None)
        assert "http" not in note
        assert note.endswith("`part-3.json`, `part-4.json` and 2 more")

    def test_of_a_job_that_a_rule_of_this_release_would_refuse(self, job: Job) -> None:
        spec = job.row.spec
        spec["training"] |= {"eval_strategy": "epoch", "metric_for_best_model": "bleu"}
        job.update(spec=spec)
        job.ship()
        run = job.run
        assert NOTE in run.data.tags
        assert run.data.params["metric_for_best_model"] == "bleu"


class TestOrigin:
    def test_user_and_source(self, job: Job) -> None:
        job.ship()
        tags = job.run.data.tags
        assert tags["mlflow.user"] == run_content._service_user()
        assert tags["mlflow.source.name"] == f"finetune {__version__}, {job.id}"
        assert tags["mlflow.source.type"] == "LOCAL"

    def test_the_job_shows_its_user(self, database: Database, make: MakeJob) -> None:
        job = uploaded(
            database,
            make,
            metadata={"user": "ada"},
            tracking={"tags": {"mlflow.source.name": "nightly"}},
        )
        job.ship()
        tags = job.run.data.tags
        assert (tags["mlflow.user"], tags["mlflow.source.name"]) == ("ada", "nightly")


class TestData:
    def test_each_split_is_an_input_named_after_its_file(self, job: Job) -> None:
        prepared = PREPARED.model_dump(mode="json")
        job.update(results={"prepare": prepared})
        for _ in range(2):
            job.ship()
        run = job.run
        assert run.inputs is not None
        found = {
            each.tags[0].value: (each.dataset.name, json.loads(each.dataset.source))
            for each in run.inputs.dataset_inputs
        }
        assert found == {
            "training": ("train.csv", {"source": "upload", "train": ["file-1"]}),
            "validation": ("dev: dev`1.csv", {"source": "upload", "validation": ["file-2"]}),
            "test": ("file-3", {"source": "upload", "test": ["file-3"]}),
        }
        assert len(run.inputs.dataset_inputs) == 3
        profiles = {
            e.dataset.name: json.loads(e.dataset.profile or "{}") for e in run.inputs.dataset_inputs
        }
        assert profiles["train.csv"] == {"examples": 90, "features": 113}
        assert run.data.params["dataset.train"] == '["train.csv"]'
        assert run.data.params["dataset.validation"] == '{"dev": ["dev`1.csv"]}'
        assert run.data.tags["finetune.dataset"] == "train.csv"

    def test_two_files_of_one_name_are_two_inputs(self, make: MakeJob) -> None:
        """To MLflow, data of the same name and digest is the same."""
        files = {"train": ["/data/train/a.csv"], "test": ["/data/test/a.csv"]}
        job = make(dataset={"source": "path", **files})
        job.update(results={"prepare": PREPARED.model_dump(mode="json")})
        job.ship()
        run = job.run
        assert run.inputs is not None
        found = {each.tags[0].value: each.dataset.name for each in run.inputs.dataset_inputs}
        assert found == {"training": "a.csv (train)", "test": "a.csv (test)"}


class TestBaseModel:
    def test_its_shape_becomes_params(self, job: Job, tmp_path: Path) -> None:
        folder = tmp_path / "model"
        folder.mkdir()
        config = {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "n_embd": 8,
            "n_layer": 2,
            "vocab_size": 11,
        }
        (folder / "config.json").write_text(json.dumps(config))
        weights = {"a": np.zeros((3, 4), np.float32), "b": np.zeros(5, np.float32)}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        place = folder.relative_to(job.workspace.parents[1])
        prepared = PREPARED.model_copy(update={"model_dir": place})
        job.update(results={"prepare": prepared.model_dump(mode="json")})
        job.ship()
        params = job.run.data.params
        assert {k: v for k, v in params.items() if k.startswith("base_model.")} == {
            "base_model.model_type": "gpt2",
            "base_model.architecture": "GPT2LMHeadModel",
            "base_model.hidden_size": "8",
            "base_model.layers": "2",
            "base_model.vocab_size": "11",
            "base_model.parameters": "17",
        }

    def test_a_model_whose_text_part_has_a_config_of_its_own(self, tmp_path: Path) -> None:
        config = {"model_type": "gemma3", "text_config": {"hidden_size": 64, "vocab_size": 7}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert base_model_config.params(tmp_path) == {
            "base_model.model_type": "gemma3",
            "base_model.hidden_size": "64",
            "base_model.vocab_size": "7",
        }

    @pytest.mark.parametrize("content", ["", "[]", "{", '{"architectures": 3, "hidden_size": "x"}'])
    def test_what_cannot_be_read_is_left_out(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "config.json").write_text(content)
        assert base_model_config.params(tmp_path) == {}
        assert base_model_config.params(tmp_path / "missing") == {}

    @pytest.mark.parametrize(
        "content",
        [b"\xff" * 100, b"", b"\2" + b"\0" * 7 + b"[]", b"\7" + b"\0" * 7 + b'{"a":1}'],
        ids=["no length", "empty", "a list", "no tensor"],
    )
    def test_damaged_weights_are_not_counted(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "config.json").write_text('{"model_type": "bert"}')
        (tmp_path / "model.safetensors").write_bytes(content)
        assert base_model_config.params(tmp_path) == {"base_model.model_type": "bert"}

    def test_only_the_weights_that_are_loaded_are_counted(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        for name in ("model-00001-of-00002", "model-00002-of-00002", "consolidated", "adapter"):
            save_file({name: np.zeros(3, np.float32)}, tmp_path / f"{name}.safetensors")
        assert base_model_config.params(tmp_path) == {"base_model.parameters": "6"}

    def test_a_folder_may_get_another_model(self, tmp_path: Path) -> None:
        file = tmp_path / "config.json"
        for size in (8, 16):
            file.write_text(json.dumps({"hidden_size": size}))
            os.utime(file, (size, size))
            assert base_model_config.params(tmp_path) == {"base_model.hidden_size": str(size)}


class TestCharts:
    def test_the_first_is_the_training_loss(self, job: Job) -> None:
        """MLflow shows metrics with a prefix first, then all others by name."""
        train(job, range(1, 4))
        job.metric("eval", 3, eval_f1=7.5)
        job.metric("system", 3, cpu_percent=9.5)
        job.end("succeeded", results={"train": TRAINED})
        assert job.ship()
        names = job.run.data.metrics
        shown = [name for name in names if not name.startswith("system/")]
        charts = sorted(shown, key=lambda name: ("/" not in name, name))
        assert charts[0] == "train/loss"
        single = [name for name in charts if name.startswith("result_")]
        assert len(single) == 4
        assert charts.index("loss") < charts.index(single[0])
        history = job.client.get_metric_history(job.run.info.run_id, "train/loss")
        assert [(each.step, each.value) for each in history] == [(1, 0.5), (2, 1 / 3), (3, 0.25)]
