from typing import Any

import pytest
from pydantic import ValidationError

from service.contract.spec.dataset import HubDataset, UploadDataset
from tests.contract.factories import job_spec


def _errors(**changes: Any) -> list[tuple[tuple[int | str, ...], str]]:
    with pytest.raises(ValidationError) as caught:
        job_spec(**changes)
    return [(error["loc"], error["type"]) for error in caught.value.errors()]


class TestJobSpec:
    def test_defaults(self) -> None:
        spec = job_spec()
        assert spec.priority == 5
        assert spec.max_retries == 3
        assert spec.hub is None
        assert spec.training.num_train_epochs == 3.0
        assert spec.tracking.experiment_name == "finetune"

    def test_a_task_name_means_the_task_with_its_defaults(self) -> None:
        assert job_spec().task == job_spec(task={"type": "question-answering"}).task

    def test_survives_json(self) -> None:
        spec = job_spec(training={"warmup_ratio": 0.1}, metadata={"team": "search"})
        assert type(spec).model_validate_json(spec.model_dump_json()) == spec

    @pytest.mark.parametrize(
        "section",
        [
            {"unknown": 1},
            {"model": {"name_or_path": "a", "trust_remote_code": True}},
            {"training": {"learning_rat": 1e-4}},
            {"task": {"type": "question-answering", "stride": 3}},
            {"resources": {"cpus": 1}},
            {"tracking": {"uri": "x"}},
            {"hub": {"model_id": "a/b", "token": "x"}},
            {"dataset": {"source": "upload", "train": "file-1", "name": "squad"}},
        ],
    )
    def test_refuses_unknown_fields_everywhere(self, section: dict[str, Any]) -> None:
        assert [kind for _, kind in _errors(**section)] == ["extra_forbidden"]

    @pytest.mark.parametrize(
        "tracking",
        [
            {"register_as": "a/b"},
            {"register_as": "it's"},
            {"register_as": "m", "log_model": False},
            {"register_as": "m", "register_alias": "latest"},
            {"register_as": "m", "register_alias": "V2"},
            {"register_as": "m", "register_alias": "a b"},
        ],
    )
    def test_refuses_what_the_model_registry_would(self, tracking: dict[str, Any]) -> None:
        assert len(_errors(tracking=tracking)) == 1

    def test_names_every_fault_at_once(self) -> None:
        faults = _errors(
            priority=11,
            model={},
            training={"learning_rate": -1, "optim": "adam"},
            metadata={"bad key": "x"},
        )
        assert {loc[:2] for loc, _ in faults} == {
            ("priority",),
            ("model",),
            ("training", "learning_rate"),
            ("training", "optim"),
            ("metadata", "bad key"),
        }

    def test_bad_rows_end_the_job_by_default(self) -> None:
        dataset = job_spec().dataset
        assert (dataset.on_bad_row, dataset.max_bad_fraction) == ("fail", 0.05)

    def test_a_fraction_of_bad_rows_needs_leave_to_skip_them(self) -> None:
        given = {"source": "upload", "train": "file-1", "max_bad_fraction": 0.5}
        with pytest.raises(ValidationError, match="max_bad_fraction` needs"):
            job_spec(dataset=given)
        assert job_spec(dataset={**given, "on_bad_row": "skip"}).dataset.max_bad_fraction == 0.5

    def test_cpu_only_contradicts_a_gpu(self) -> None:
        with pytest.raises(ValidationError, match=r"contradicts `resources\.gpus`"):
            job_spec(training={"use_cpu": True}, resources={"gpus": 1})


class TestDatasets:
    def test_one_file_or_several(self) -> None:
        one = job_spec(dataset={"source": "upload", "train": "file-1"}).dataset
        several = job_spec(dataset={"source": "upload", "train": ["file-1", "file-2"]}).dataset
        assert isinstance(one, UploadDataset)
        assert one.train == ["file-1"]
        assert several.train == ["file-1", "file-2"]

    def test_hub_splits_take_slices(self) -> None:
        dataset = job_spec(
            dataset={"source": "hub", "name": "rajpurkar/squad", "train": "train[:10%]"}
        ).dataset
        assert isinstance(dataset, HubDataset)
        assert dataset.train == "train[:10%]"

    @pytest.mark.parametrize("name", ["../secret", "a/b/c", "", "a b", "x\x00"])
    def test_hub_names_are_names(self, name: str) -> None:
        assert _errors(dataset={"source": "hub", "name": name})

    @pytest.mark.parametrize("file_id", ["1", "file-", "file-../x", "file-" + "a" * 65])
    def test_file_ids_are_ids(self, file_id: str) -> None:
        assert _errors(dataset={"source": "upload", "train": file_id})


class TestTraining:
    @pytest.mark.parametrize(
        ("old", "new", "value"),
        [
            ("evaluation_strategy", "eval_strategy", "no"),
            ("warmup_ratio", "warmup_steps", 0.25),
            ("per_gpu_train_batch_size", "per_device_train_batch_size", 4),
            ("per_gpu_eval_batch_size", "per_device_eval_batch_size", 4),
            ("train_batch_size", "per_device_train_batch_size", 4),
            ("eval_batch_size", "per_device_eval_batch_size", 4),
            ("no_cuda", "use_cpu", True),
        ],
    )
    def test_older_names_are_accepted(self, old: str, new: str, value: Any) -> None:
        assert getattr(job_spec(training={old: value}).training, new) == value

    @pytest.mark.parametrize("given", [{"on_oom": "halve_batch"}, {"auto_find_batch_size": True}])
    def test_one_option_with_two_names(self, given: dict[str, Any]) -> None:
        training = job_spec(training=given).training
        assert (training.on_oom, training.auto_find_batch_size) == ("halve_batch", True)
        assert job_spec(training=training.model_dump()).training == training

    @pytest.mark.parametrize(
        "training",
        [
            {"eval_strategy": "steps", "eval_steps": 0.1, "save_steps": 0.3},
            {"eval_strategy": "steps", "eval_steps": 20, "save_steps": 30},
            {"eval_strategy": "steps", "eval_steps": 0.1, "save_steps": 30},
            {"eval_strategy": "epoch", "save_strategy": "steps"},
            {"eval_strategy": "steps", "save_strategy": "epoch"},
            {"eval_strategy": "epoch", "save_strategy": "best"},
        ],
    )
    def test_the_best_model_needs_no_matching_intervals(self, training: dict[str, Any]) -> None:
        """Each new best is saved when it occurs."""
        spec = job_spec(
            dataset={"source": "upload", "train": "file-1", "validation": "file-2"},
            training={"load_best_model_at_end": True, **training},
        )
        assert spec.training.saves_each_best
