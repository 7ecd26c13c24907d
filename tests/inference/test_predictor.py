"""A finished model on a few rows gives the answers of the training that made it, which
tests/tasks/test_modes.py compares with those of a job with `mode: predict`. Of language models only
such a job gives answers."""

import functools
import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from peft import PeftModel

from service.contract.failures import FailureCode, StageError
from service.contract.spec.spec import JobSpec
from service.contract.stage.prediction_events import TrainedModel
from tests.data.squad_sample import squad_rows
from tests.support.models import save_tiny_gpt2
from tests.tasks.samples import CASES
from tests.tasks.stages import StagedJob, job_of, write_rows
from tests.training.support.jobs import fails_with
from worker.inference.predictor import Predictor
from worker.inference.rows import refused
from worker.training import cpu_products
from worker.training.adapters.adapter import known_warnings

EVERY_TIME = ("question-answering", "text-classification", "causal-lm", "summarization")
OF_THEIR_TRAINING = {
    *("question-answering", "text-classification", "token-classification", "summarization")
}
SELDOM = [pytest.param(name, marks=pytest.mark.heavy) for name in CASES if name not in EVERY_TIME]
Once = Callable[[str], tuple[StagedJob, Path]]
LABELS = ("answers", "label", "tags", "summary", "target", "completion")
SQUAD = {"type": "question-answering", "max_seq_length": 96, "doc_stride": 16}
SQUAD_2 = {**SQUAD, "version_2_with_negative": True, "null_score_diff_threshold": "auto"}
TRAINING = {"max_steps": 3, "learning_rate": 1e-2, "per_device_eval_batch_size": 4}


def job(home: Path, name: str, **sections: Any) -> StagedJob:
    """A training of a case of tests/tasks/samples.py, with a test split."""
    parameters, save, make_row = CASES[name]
    rows = [make_row(number) for number in range(8)]
    task = {"type": name.partition("/")[0], **parameters}
    dataset = {"train": rows, "validation": rows, "test": inputs(name, rows)}
    made = job_of(home, task, save(home / "base"), dataset, TRAINING)
    made.body |= sections
    return made


def inputs(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = [{k: v for k, v in row.items() if k not in LABELS} for row in rows]
    return [{"text": "[MASK] " + row["text"]} for row in found] if name == "masked-lm" else found


def predictor(trained: StagedJob, model_dir: Path, folder: Path, **changes: Any) -> Predictor:
    spec = JobSpec.model_validate(trained.body).model_dump(mode="json")
    spec["task"] |= changes
    folder.mkdir()
    base = Path(trained.body["model"]["name_or_path"])
    asked = TrainedModel(spec=spec, folder=model_dir, settings=[], base=base)
    return Predictor(asked, folder, use_gpu=False)


def answers(model: Predictor, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = model.predict(rows).answers
    assert found is not None
    return found


def files(done: StagedJob) -> dict[str, Any]:
    folder = done.workspace / "attempts" / "2" / "predictions" / "test"
    return {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}


def finished(trained: StagedJob) -> Path:
    result, _ = trained.train()
    return trained.workspace / str(result.output_dir)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """A trained job of a case, and a copy of its model."""

    @functools.cache
    def train(name: str) -> tuple[StagedJob, Path]:
        trained = job(tmp_path_factory.mktemp("once") / "job", name)
        return trained, finished(trained)

    def copied(name: str) -> tuple[StagedJob, Path]:
        trained, model = train(name)
        copy = tmp_path_factory.mktemp("copy") / "model"
        shutil.copytree(model, copy)
        return replace(trained, body=deepcopy(trained.body)), copy

    return copied


def predicted(trained: StagedJob, model_dir: Path, home: Path) -> dict[str, Any]:
    """By a job with `mode: predict`."""
    test = {"test": trained.body["dataset"]["test"]}
    done = job_of(home, trained.body["task"], model_dir, test, TRAINING, mode="predict")
    done.train()
    return files(done)


def given(trained: StagedJob) -> list[dict[str, Any]]:
    file = Path(trained.body["dataset"]["test"])
    return [json.loads(line) for line in file.read_text().splitlines()]


def require_answers(expected: dict[str, Any], found: list[dict[str, Any]]) -> None:
    """The files of a prediction have exactly these answers."""
    wanted = expected["predictions.json"]
    if isinstance(wanted, list):
        assert found == [{k: v for k, v in row.items() if k != "row"} for row in wanted]
        return
    assert [each["prediction"] for each in found] == list(wanted.values())
    for answer, nbest in zip(found, expected["nbest_predictions.json"].values(), strict=True):
        best = [{name: each[name] for name in ("text", "probability")} for each in nbest[:3]]
        assert answer["nbest"] == best
    odds = expected.get("null_odds.json", {})
    assert [each["null_odds"] for each in found if odds] == list(odds.values())


class TestWholeModels:
    @pytest.mark.parametrize("name", [*EVERY_TIME, *SELDOM])
    def test_answer_as_jobs_do(self, name: str, once: Once, tmp_path: Path) -> None:
        trained, model = once(name)
        if name in OF_THEIR_TRAINING:
            expected = files(trained)
        else:
            expected = predicted(trained, model, tmp_path / "predicted")
        found = answers(predictor(trained, model, tmp_path / "try"), given(trained))
        require_answers(expected, found)
        assert len(found) == 8

    def test_the_precision_is_that_of_its_own_layers(
        self, once: Once, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As in the job: of other sizes, the other precision may be the faster one."""
        trained, model = once("text-classification")
        asked: list[Any] = []
        measured = cpu_products.measured
        monkeypatch.setattr(
            cpu_products, "measured", lambda sizes: (asked.append(sizes), measured(sizes))[1]
        )
        answers(predictor(trained, model, tmp_path / "try"), given(trained))
        assert asked == [[(384, 384)]]

    def test_questions_without_an_answer(self, tmp_path: Path) -> None:
        rows = squad_rows("train", "2.0")[:12]
        trained = job(tmp_path / "job", "question-answering", task=SQUAD_2)
        files_of = {
            "train": write_rows(tmp_path / "train.jsonl", rows),
            "validation": write_rows(tmp_path / "validation.jsonl", rows),
            "test": write_rows(tmp_path / "test.jsonl", inputs("", rows)),
        }
        trained.body["dataset"] = {"source": "path", **files_of}
        model = finished(trained)
        expected = predicted(trained, model, tmp_path / "predicted")
        found = answers(predictor(trained, model, tmp_path / "try"), given(trained))
        require_answers(expected, found)

    def test_is_loaded_once_and_takes_rows_of_the_training_data(
        self, once: Once, tmp_path: Path
    ) -> None:
        columns = {"context": "passage"}
        trained, model = once("question-answering")
        trained.body["dataset"]["columns"] = columns
        expected = answers(predictor(trained, model, tmp_path / "first"), given(trained))
        again = predictor(trained, model, tmp_path / "try")
        for row, answer in zip(given(trained), expected, strict=True):
            mine = {"passage": row["context"], "question": row["question"], "answers": "?"}
            (found,) = answers(again, [mine])
            assert found["prediction"] == answer["prediction"]
            assert found["probability"] == pytest.approx(answer["probability"], rel=1e-4)
        assert not list((tmp_path / "try").rglob("*.arrow")), "the rows are kept"

    def test_a_row_that_cannot_be_used(self, once: Once, tmp_path: Path) -> None:
        trained, folder = once("question-answering")
        model = predictor(trained, folder, tmp_path / "try")
        with fails_with(FailureCode.MISSING_COLUMN, "question"):
            model.predict([{"context": "x"}])
        assert answers(model, given(trained)[:1])[0]["prediction"]
        with pytest.raises(StageError) as caught:
            model.predict([*given(trained)[:1], {"context": "x", "question": ""}])
        failure = refused(caught.value).failure
        assert failure.message == "rows[1]: `question` is empty"
        assert failure.action == "Correct the rows, and ask again."

    def test_generation_can_be_changed_and_long_prompts_are_reported(
        self, once: Once, tmp_path: Path
    ) -> None:
        trained, model = once("causal-lm")
        short = predictor(trained, model, tmp_path / "try", max_new_tokens=1)
        found = short.predict([{"text": "the report of the water board " * 30}])
        assert found.answers is not None
        assert len(found.answers[0]["prediction"].split()) <= 1
        assert "1 prompts of the test split were cut" in found.notices[0]


class TestSafety:
    def test_no_code_of_the_model_folder_runs(self, once: Once, tmp_path: Path) -> None:
        trained, model = once("causal-lm")
        config = json.loads((model / "config.json").read_text())
        config |= {
            "model_type": "own",
            "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
        }
        (model / "config.json").write_text(json.dumps(config))
        (model / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
        with pytest.raises(StageError):
            predictor(trained, model, tmp_path / "try")
        assert not (tmp_path / "ran").exists()

    def test_weights_other_than_safetensors_are_refused(self, once: Once, tmp_path: Path) -> None:
        trained, model = once("causal-lm")
        (model / "model.safetensors").rename(model / "pytorch_model.bin")
        with pytest.raises(Exception, match="safetensors"):
            predictor(trained, model, tmp_path / "try")


class TestAdapters:
    @pytest.mark.parametrize(
        ("name", "adapter"),
        [
            ("question-answering", {"method": "lora"}),
            pytest.param("text-classification", {"method": "lora"}, marks=pytest.mark.heavy),
            ("token-classification", {"method": "ia3"}),
            ("summarization", {"method": "prefix-tuning", "num_virtual_tokens": 4}),
        ],
    )
    def test_answer_as_after_their_training(
        self, name: str, adapter: dict[str, Any], tmp_path: Path
    ) -> None:
        trained = job(tmp_path / "job", name, peft=adapter)
        model = finished(trained)
        assert not (model / "model.safetensors").exists()
        found = answers(predictor(trained, model, tmp_path / "try"), given(trained))
        require_answers(files(trained), found)

    def test_generate_as_peft_does(self, tmp_path: Path) -> None:
        trained = job(tmp_path / "job", "causal-lm", peft={"method": "lora", "r": 4})
        model = finished(trained)
        found = predictor(trained, model, tmp_path / "try", max_new_tokens=6)
        (answer,) = answers(found, [{"text": "the report"}])
        base = transformers.AutoModelForCausalLM.from_pretrained(
            save_tiny_gpt2(tmp_path / "gpt2"), dtype="float32"
        )
        with known_warnings():
            tuned: Any = PeftModel.from_pretrained(base, str(model)).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        prompt = tokenizer("the report", return_tensors="pt")
        whole = tuned.generate(**prompt, max_new_tokens=6, do_sample=False)
        text = tokenizer.decode(whole[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
        assert answer["prediction"] == text
