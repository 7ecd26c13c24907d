"""A search of real jobs against `transformers.Trainer.hyperparameter_search`, which trains the same
trials one after the other in this process."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import optuna
import pytest
import transformers
from transformers.trainer_utils import BestRun

from tests.e2e.stack import ENDED, Stack
from tests.support.models import minilm_dir
from tests.support.services import wait_until
from tests.training.support import PLAIN

pytestmark = [
    pytest.mark.parametrize("stack", ["sqlite-valkey"], indirect=True),
    pytest.mark.timeout(900),
    pytest.mark.long,
    pytest.mark.heavy,
]

DATA: Final = Path(__file__).resolve().parents[2] / "examples" / "classification"
LENGTH: Final = 32
TRIALS: Final = 9
STARTUP: Final = 4
SEED: Final = 11
RATES: Final = (1e-4, 3e-2)
DECAYS: Final = (0.0, 0.3)
BATCHES: Final = (4, 8, 16)
# In the file's order and without dropout: the reference would shuffle and drop otherwise.
TRAINING: Final[dict[str, Any]] = {
    "max_steps": 24,
    "logging_steps": 8,
    "eval_strategy": "steps",
    "eval_steps": 8,
    "save_strategy": "no",
    "train_sampling_strategy": "sequential",
    "use_cpu": True,
}


class Tried(NamedTuple):
    values: dict[str, Any]
    state: str
    reports: dict[int, float]
    """Step → loss of the validation data."""


class Data(NamedTuple):
    train: Path
    validation: Path
    model: Path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Data:
    """Real questions, and a BERT with a head for their topics, so that no weight is random."""
    folder = tmp_path_factory.mktemp("topics")
    lines = (DATA / "topics-train.jsonl").read_text().splitlines()
    train, validation = folder / "train.jsonl", folder / "validation.jsonl"
    train.write_text("\n".join(lines[:280]) + "\n")
    validation.write_text("\n".join(lines[280:]) + "\n")
    names = sorted({json.loads(line)["label"] for line in lines})
    # Beside the others: one of the folders from which the service takes models.
    return Data(train, validation, _classifier(tiny_model.parent / "topics", names))


def _classifier(folder: Path, names: Sequence[str]) -> Path:
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_dir())
    transformers.set_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(names)),
        label2id={name: number for number, name in enumerate(names)},
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


SAMPLERS: Final = {
    "tpe": ({"n_startup_trials": STARTUP}, optuna.samplers.TPESampler),
    "random": ({}, optuna.samplers.RandomSampler),
}
PRUNERS: Final = {
    "none": ({}, optuna.pruners.NopPruner),
    "median": ({"n_startup_trials": STARTUP}, optuna.pruners.MedianPruner),
}


@pytest.mark.parametrize(("sampler", "pruner"), [("tpe", "none"), ("random", "median")])
class TestSearchAgainstTrainer:
    def test_the_same_trials_and_the_same_winner(
        self, stack: Stack, data: Data, tmp_path: Path, sampler: str, pruner: str
    ) -> None:
        best, theirs = _reference(data, tmp_path, sampler, pruner)
        number, ours = _searched(stack, data, sampler, pruner)

        assert [trial.values for trial in ours] == [trial.values for trial in theirs]
        assert [trial.state for trial in ours] == [trial.state for trial in theirs]
        for our, their in zip(ours, theirs, strict=True):
            assert our.reports == pytest.approx(their.reports, rel=1e-4)
        assert str(number) == best.run_id
        assert ours[number].values == best.hyperparameters
        assert ours[number].reports[24] == pytest.approx(best.objective, rel=1e-4)
        # Else neither the winner nor the pruner had anything to choose.
        last = [trial.reports[24] for trial in theirs if 24 in trial.reports]
        assert max(last) > 1.01 * min(last)  # a hundred times the tolerance
        assert ("pruned" in {trial.state for trial in theirs}) == (pruner == "median")


# ---- the reference ------------------------------------------------------------------------------


def _reference(data: Data, folder: Path, sampler: str, pruner: str) -> tuple[BestRun, list[Tried]]:
    sampler_options, make_sampler = SAMPLERS[sampler]
    pruner_options, make_pruner = PRUNERS[pruner]
    storage = optuna.storages.InMemoryStorage()
    best = _trainer(data, folder).hyperparameter_search(
        hp_space=_suggested,
        n_trials=TRIALS,
        direction="minimize",
        backend="optuna",
        sampler=make_sampler(seed=SEED, **sampler_options),
        pruner=make_pruner(**pruner_options),
        storage=storage,
        study_name="reference",
    )
    assert isinstance(best, BestRun)
    study = optuna.load_study(study_name="reference", storage=storage)
    return best, [
        Tried(trial.params, trial.state.name.lower(), trial.intermediate_values)
        for trial in study.trials
    ]


def _suggested(trial: optuna.Trial) -> dict[str, Any]:
    return {
        "learning_rate": trial.suggest_float("learning_rate", *RATES, log=True),
        "weight_decay": trial.suggest_float("weight_decay", *DECAYS),
        "per_device_train_batch_size": trial.suggest_categorical(
            "per_device_train_batch_size", BATCHES
        ),
    }


def _trainer(data: Data, folder: Path) -> transformers.Trainer:
    tokenizer = transformers.AutoTokenizer.from_pretrained(data.model)

    def model() -> Any:
        loaded = transformers.AutoModelForSequenceClassification.from_pretrained(data.model)
        loaded.set_attn_implementation("eager")  # ours on a CPU: another kernel rounds otherwise
        return loaded

    label_ids = model().config.label2id
    return transformers.Trainer(
        model_init=model,
        args=transformers.TrainingArguments(
            output_dir=str(folder),
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            **TRAINING,
        ),
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
        train_dataset=_rows(data.train, tokenizer, label_ids),
        eval_dataset=_rows(data.validation, tokenizer, label_ids),
    )


def _rows(path: Path, tokenizer: Any, label_ids: dict[str, int]) -> Any:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        {
            **tokenizer(row["text"], truncation=True, max_length=LENGTH),
            "labels": label_ids[row["label"]],
        }
        for row in rows
    ]


# ---- ours ---------------------------------------------------------------------------------------


def _searched(stack: Stack, data: Data, sampler: str, pruner: str) -> tuple[int, list[Tried]]:
    """Number of the winner, and all trials."""
    answer = stack.http.post("/v1/searches", json=_search(stack, data, sampler, pruner))
    assert answer.status_code == 201, answer.text
    path = f"/v1/searches/{answer.json()['id']}"

    def page(of: str = "") -> Any:
        return stack.http.get(path + of).raise_for_status().json()

    wait_until(lambda: page()["state"] in ENDED, 600, "the search")
    assert page()["state"] == "succeeded", page()
    (best,) = page("/best")["data"]
    return best["trial"], [_tried(trial) for trial in page("/trials?limit=100")["data"]]


def _search(stack: Stack, data: Data, sampler: str, pruner: str) -> dict[str, Any]:
    return {
        "job": {
            "task": {"type": "text-classification", "max_seq_length": LENGTH},
            "model": {"name_or_path": str(data.model)},
            "dataset": {
                "source": "upload",
                "train": stack.upload(data.train),
                "validation": stack.upload(data.validation),
            },
            # Trainer evaluates no model before its first step.
            "training": TRAINING | PLAIN | {"eval_on_start": False},
        },
        "space": {
            "training.learning_rate": {"low": RATES[0], "high": RATES[1], "log": True},
            "training.weight_decay": {"low": DECAYS[0], "high": DECAYS[1]},
            "training.per_device_train_batch_size": list(BATCHES),
        },
        "objective": {"metric": "loss"},
        "sampler": {"name": sampler, "seed": SEED, **SAMPLERS[sampler][0]},
        "pruner": {"name": pruner, **PRUNERS[pruner][0]},
        "max_trials": TRIALS,
        "template_trial": False,
    }


def _tried(trial: dict[str, Any]) -> Tried:
    values = {path.removeprefix("training."): value for path, value in trial["values"].items()}
    reports = {report["step"]: report["value"] for report in trial["reports"]}
    return Tried(values, trial["state"], reports)
