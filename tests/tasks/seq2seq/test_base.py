"""Summarization and translation as jobs: features, losses, generated texts and what they score."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from rouge_score.rouge_scorer import RougeScorer
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from service.contract.failures import FailureCode, StageError
from service.contract.spec.spec import JobSpec
from service.contract.stage.events import ArtifactWritten, Notice
from service.contract.tasks.seq2seq import GenerationSpec, SummarizationSpec
from tests.support.models import save_tiny_mbart, save_tiny_t5
from tests.tasks.stages import StagedJob, assert_accumulates, job_of, write_rows
from tests.training.support.jobs import PLAIN, fails_with, scores
from worker.tasks.base import load_splits
from worker.tasks.seq2seq import base
from worker.tasks.seq2seq.summarization import Summarization, by_sentence, rouge
from worker.tasks.seq2seq.translation import Translation
from worker.training.loss import label_smoothing
from worker.training.objective import Forward

pytestmark = pytest.mark.usefixtures("trainings")

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def rows(name: str, count: int) -> list[dict[str, Any]]:
    lines = (EXAMPLES / "seq2seq" / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[:count]]


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [row["text"] for row in rows("summaries-train.jsonl", 60)]
    return save_tiny_t5(tmp_path_factory.mktemp("t5"), texts)


@pytest.fixture
def model(t5: Path) -> Any:
    return AutoModelForSeq2SeqLM.from_pretrained(t5).eval()


@pytest.fixture
def tokenizer(t5: Path) -> Any:
    return AutoTokenizer.from_pretrained(t5)


Make = Callable[..., StagedJob]


@pytest.fixture
def make_job(tmp_path: Path, t5: Path) -> Make:
    made = iter(range(100))

    def make(
        task: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        model: Path = t5,
        test: list[dict[str, Any]] | None = None,
        validation: list[dict[str, Any]] | None = None,
    ) -> StagedJob:
        home = tmp_path / f"home-{next(made)}"
        dataset = {
            "train": rows("summaries-train.jsonl", 24),
            "validation": validation or rows("summaries-validation.jsonl", 6),
        }
        if test is not None:
            dataset["test"] = test
        parameters = {"type": "summarization", "max_source_length": 64, "max_target_length": 16}
        options = PLAIN | {"max_steps": 1, "learning_rate": 1e-2, "logging_steps": 1}
        options |= training or {}
        return job_of(home, parameters | (task or {}), model, dataset, options)

    return make


def learning(make_job: Make) -> StagedJob:
    """Trained on what it is asked for until it knows it, whatever the processor rounds."""
    return make_job(
        {"num_beams": 2, "max_target_length": 8},
        {"max_steps": 240, "per_device_train_batch_size": 12},
        validation=rows("summaries-train.jsonl", 6),
    )


class TestRouge:
    def test_literals(self) -> None:
        scores = rouge(["the cat sat on the mat"], ["the cat is on the mat"])
        assert scores == pytest.approx(
            {"rouge1": 500 / 6, "rouge2": 60.0, "rougeL": 500 / 6, "rougeLsum": 500 / 6}
        )

    def test_words_are_stemmed(self) -> None:
        assert rouge(["he was running"], ["he was run"])["rouge1"] == pytest.approx(100.0)

    def test_lsum_compares_sentence_by_sentence(self) -> None:
        scores = rouge(["Dogs ran. Cats slept."], ["Cats slept. Dogs ran."])
        assert scores["rougeL"] == pytest.approx(50.0)
        assert scores["rougeLsum"] == pytest.approx(100.0)

    @pytest.mark.parametrize(
        ("text", "sentences"),
        [
            ("One. Two! Three? 4 five.", "One.\nTwo!\nThree?\n4 five."),
            ("It cost 3.5 pounds, e.g. here.", "It cost 3.5 pounds, e.g. here."),
            ('He said "no." Then he left.', 'He said "no."\nThen he left.'),
        ],
    )
    def test_sentences(self, text: str, sentences: str) -> None:
        assert by_sentence(text) == sentences


class TestFeatures:
    def test_prefix_lengths_and_end(self, make_job: Make, t5: Path) -> None:
        job = make_job({"source_prefix": "summarize: ", "val_max_target_length": 5})
        prepared = job.prepare()
        tokenizer = AutoTokenizer.from_pretrained(t5)
        splits = load_splits(prepared.prepared_dir)
        first = splits["train"].features[0]
        source = rows("summaries-train.jsonl", 1)[0]
        whole = tokenizer("summarize: " + source["text"])["input_ids"]
        assert len(whole) > 64
        assert first["input_ids"] == [*whole[:63], 1]
        assert first["labels"] == [*tokenizer(source["summary"])["input_ids"][:15], 1]
        lengths = {len(row) for row in splits["validation"].features["labels"]}
        assert lengths == {5}

    def test_reports_what_was_cut(self, make_job: Make) -> None:
        job = make_job()
        job.prepare()
        messages = [event.message for event in job.notices if isinstance(event, Notice)]
        assert any("24 sources of the train split were cut to 64" in text for text in messages)
        assert any("`val_max_target_length`" in text for text in messages)

    def test_columns_by_their_scripts_names(self, make_job: Make) -> None:
        job = make_job({"text_column": "article", "summary_column": "highlights"})
        pairs = [
            {"article": row["text"], "highlights": row["summary"]}
            for row in rows("summaries-train.jsonl", 24)
        ]
        job.body["dataset"]["train"] = write_rows(job.home / "train.jsonl", pairs)
        del job.body["dataset"]["validation"]
        plain = make_job()
        renamed, usual = (each.splits["train"].features for each in (job, plain))
        assert renamed[:] == usual[:]

    def test_decoder_must_hold_the_targets(self, make_job: Make, tmp_path: Path) -> None:
        model = save_tiny_mbart(tmp_path / "mbart")
        job = make_job({"generation_max_length": 65, "lang": "en_XX"}, model=model)
        with pytest.raises(StageError, match=r"`generation_max_length` is 65.* 64 positions"):
            job.prepare()

    def test_encoder_must_hold_the_sources(self, make_job: Make, tmp_path: Path) -> None:
        job = make_job({"max_source_length": 65}, model=save_tiny_mbart(tmp_path / "mbart"))
        with pytest.raises(StageError, match="`max_source_length` is 65"):
            job.prepare()


def bound(job: StagedJob, model: Any, tokenizer: Any) -> Any:
    prepared = job.prepare()
    spec = JobSpec.model_validate(job.body)
    task = Summarization() if spec.task.type == "summarization" else Translation()
    return task.bind(spec, tokenizer, model, load_splits(prepared.prepared_dir))


class TestLoss:
    def test_is_the_models_own(self, make_job: Make, model: Any, tokenizer: Any) -> None:
        objective = bound(make_job(), model, tokenizer)
        batch = objective.collate([{"input_ids": [5, 6, 1], "labels": [7, 1]}, *_uneven()])
        assert batch["labels"].tolist() == [[7, 1, -100], [8, 9, 1]]
        assert batch["decoder_input_ids"].tolist() == [[0, 7, 1], [0, 8, 9]]
        assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
        own = model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            labels=batch["labels"],
        ).loss
        assert objective.item_count(batch) == 5
        loss = objective.loss_sum(model, batch) / 5
        assert loss.item() == pytest.approx(own.item(), rel=1e-6)

    def test_padding_counts_when_asked(self, make_job: Make, model: Any, tokenizer: Any) -> None:
        objective = bound(make_job({"ignore_pad_token_for_loss": False}), model, tokenizer)
        batch = objective.collate([{"input_ids": [5, 6, 1], "labels": [7, 1]}, *_uneven()])
        assert batch["labels"].tolist() == [[7, 1, 0], [8, 9, 1]]
        assert objective.item_count(batch) == 6

    def test_a_model_that_shifts_by_itself(
        self, make_job: Make, model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = make_job()
        features = [{"input_ids": [5, 6, 1], "labels": [7, 1]}, *_uneven()]
        first = bound(job, model, tokenizer)
        expected = first.loss_sum(model, first.collate(features))
        monkeypatch.delattr(type(model), "prepare_decoder_input_ids_from_labels")
        second = bound(job, model, tokenizer)
        batch = second.collate(features)
        assert "decoder_input_ids" not in batch
        assert second.loss_sum(model, batch).item() == pytest.approx(expected.item(), rel=1e-6)

    @pytest.mark.parametrize("factor", [0.0, 0.1])
    def test_needs_no_logits_of_whole_batches(
        self, make_job: Make, model: Any, tokenizer: Any, factor: float
    ) -> None:
        objective = bound(make_job(), model, tokenizer)
        batch = objective.collate([{"input_ids": [5, 6, 1], "labels": [7, 1]}, *_uneven()])
        lengths: list[int] = []
        model.lm_head.register_forward_hook(lambda _m, _i, out: lengths.append(out.shape[1]))
        loss = objective.smoothed(factor)(model, batch)
        evaluated = objective._token_losses(model, batch)
        assert lengths == [1, 1]
        logits, labels = objective.logits_and_labels(model, batch)
        whole = label_smoothing.cross_entropies(logits, labels, factor)
        assert loss.item() == pytest.approx(whole.item(), rel=1e-6)
        assert evaluated[0, 2] == 0
        if factor == 0:
            assert evaluated.sum().item() == pytest.approx(whole.item(), rel=1e-6)

    def test_accumulated_is_the_large_batch(self, make_job: Make, tmp_path: Path) -> None:
        texts = [row["text"] for row in rows("summaries-train.jsonl", 20)]
        model = save_tiny_t5(tmp_path / "model", texts, dropout=0.0)

        def make(**batches: int) -> StagedJob:
            options = {"max_steps": 3, "save_strategy": "no", **batches}
            return make_job({"predict_with_generate": False}, options, model=model)

        assert_accumulates(make, 8, 2, ["loss"], rel=1e-5)


def _uneven() -> list[dict[str, list[int]]]:
    return [{"input_ids": [5, 1], "labels": [8, 9, 1]}]


class TestGeneration:
    @pytest.fixture
    def sources(self) -> torch.Tensor:
        return torch.arange(20, 68).reshape(4, 12)

    def generate(self, model: Any, sources: torch.Tensor, **task: Any) -> list[list[int]]:
        parameters = SummarizationSpec.model_validate({"max_target_length": 12, **task})
        config = base.generation_config(model.generation_config, parameters)
        torch.manual_seed(0)
        tokens: list[list[int]] = model.generate(sources, generation_config=config).tolist()
        return tokens

    @pytest.mark.parametrize(
        ("before", "task"),
        [
            ({}, {"num_beams": 4}),
            ({}, {"generation_max_length": 5}),
            ({}, {"val_max_target_length": 7}),
            ({}, {"generation": {"no_repeat_ngram_size": 1}}),
            ({}, {"generation": {"repetition_penalty": 1.5}}),
            ({}, {"generation": {"do_sample": True}}),
            ({"do_sample": True}, {"generation": {"temperature": 0.1}}),
            ({"do_sample": True}, {"generation": {"top_k": 2}}),
            ({"do_sample": True}, {"generation": {"top_p": 0.05}}),
        ],
    )
    def test_each_option_changes_the_texts(
        self, model: Any, sources: torch.Tensor, before: dict[str, Any], task: dict[str, Any]
    ) -> None:
        changed = dict(task)
        changed["generation"] = {**before, **task.get("generation", {})}
        assert self.generate(model, sources, generation=before) != self.generate(
            model, sources, **changed
        )

    @pytest.mark.parametrize(
        "option",
        [
            {"min_length": 6},
            {"min_new_tokens": 6},
            {"early_stopping": True},
            {"early_stopping": "never"},
            {"length_penalty": 2.0},
            {"encoder_no_repeat_ngram_size": 2},
            {"encoder_repetition_penalty": 1.5},
        ],
    )
    def test_the_rest_reach_the_library_by_name(self, model: Any, option: dict[str, Any]) -> None:
        parameters = SummarizationSpec.model_validate({"generation": option})
        config = base.generation_config(model.generation_config, parameters)
        for name, value in option.items():
            assert getattr(model.generation_config, name) != value
            assert getattr(config, name) == value

    def test_the_shortest_must_not_exceed_the_longest(self) -> None:
        with pytest.raises(ValidationError, match=r"`generation\.min_length` \(13\) is above"):
            SummarizationSpec(max_target_length=12, generation=GenerationSpec(min_length=13))


class TestEvaluation:
    def test_metrics_are_those_of_the_written_predictions(self, make_job: Make) -> None:
        job = learning(make_job)
        result, recorder = job.train()
        written = job.predictions()
        scorer = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=True)
        scores = [
            scorer.score(by_sentence(row["reference"]), by_sentence(row["prediction"]))
            for row in written
        ]
        for kind in ("rouge1", "rouge2", "rougeL", "rougeLsum"):
            mean = sum(score[kind].fmeasure for score in scores) / len(scores)
            assert result.metrics[f"eval_{kind}"] == pytest.approx(100 * mean, abs=1e-9)
        assert result.metrics["eval_rouge1"] > 0
        assert 1 <= result.metrics["eval_gen_len"] <= 16
        assert [row.keys() for row in result.samples] == [{"source", "prediction", "reference"}] * 3
        names = {event.name for event in recorder.of(ArtifactWritten)}
        assert {"predictions.json", "generated_predictions.txt"} <= names
        lines = (job.workspace / "attempts/2/predictions/generated_predictions.txt").read_text()
        assert lines.splitlines() == [row["prediction"] for row in written]

    def test_a_test_split_needs_no_summaries(self, make_job: Make) -> None:
        texts = [{"text": row["text"]} for row in rows("summaries-validation.jsonl", 3)]
        job = make_job(test=texts)
        _, recorder = job.train()
        names = {event.name for event in recorder.of(ArtifactWritten)}
        assert {"test/predictions.json", "test/generated_predictions.txt"} <= names
        found = job.predictions("test/predictions.json")
        assert [row.keys() for row in found] == [{"prediction"}] * 3

    def test_without_generation_there_is_only_the_loss(self, make_job: Make) -> None:
        result, recorder = make_job({"predict_with_generate": False}).train()
        assert scores(result.metrics).keys() == {"loss"}
        assert not [e for e in recorder.of(ArtifactWritten) if "predictions" in e.name]

    def test_without_generation_nothing_can_be_predicted(self, make_job: Make) -> None:
        job = make_job({"predict_with_generate": False}, test=[{"text": "a"}])
        with fails_with(FailureCode.INVALID_OPTION, "predict_with_generate"):
            job.prepare()

    def test_sampling_leaves_the_training_alone_and_repeats(self, make_job: Make) -> None:
        task = {"generation": {"do_sample": True}}
        often, seldom = (
            make_job(task, {"max_steps": 4, "eval_strategy": strategy, "eval_steps": 1}).train()
            for strategy in ("steps", "no")
        )
        assert often[1].train_values("loss") == seldom[1].train_values("loss")
        assert often[0].samples == seldom[0].samples

    def test_in_bfloat16(self, make_job: Make) -> None:
        full, _ = make_job().train()
        half, _ = make_job(training={"bf16": True}).train()
        assert half.metrics["eval_loss"] == pytest.approx(full.metrics["eval_loss"], rel=1e-2)
        assert half.metrics["eval_loss"] != full.metrics["eval_loss"]


class TestGeneratedLengths:
    """What the reference counts at batch size 1: every token but padding, the end token included.

    In larger batches it also counts what fills the rows of finished beams: where the pad token's id
    is 0, `generate` fills them with the end token."""

    @pytest.fixture
    def model(self, t5: Path) -> Any:
        """Generates texts of 1 to 15 tokens."""
        model: Any = AutoModelForSeq2SeqLM.from_pretrained(t5).eval()
        torch.manual_seed(0)
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.data = torch.randn_like(weight) * 0.2
        head = model.lm_head.weight.data.clone()
        head[END] *= 4
        model.lm_head.weight = torch.nn.Parameter(head)
        return model

    @pytest.mark.parametrize(
        "task",
        [{}, {"num_beams": 2}, {"num_beams": 3, "generation": {"length_penalty": -2.0}}],
        ids=["greedy", "beams", "short beams"],
    )
    def test_are_the_same_in_batches_of_any_size(
        self, make_job: Make, t5: Path, model: Any, tmp_path: Path, task: dict[str, Any]
    ) -> None:
        objective = bound(make_job(task), model, AutoTokenizer.from_pretrained(t5))
        config = objective._generation
        alone = [
            model.generate(torch.tensor([row]), generation_config=config)[0]
            for row in objective._splits["validation"].features["input_ids"]
        ]
        lengths = [int((row != PAD).sum()) for row in alone]
        assert len(set(lengths)) > 2
        texts = objective._texts([row.tolist() for row in alone])
        for size in (1, 4, 6):
            found = objective.evaluate("validation", in_batches(model, size), tmp_path)
            assert found.metrics["gen_len"] == pytest.approx(sum(lengths) / len(lengths))
            written = json.loads((tmp_path / "predictions.json").read_text(encoding="utf-8"))
            assert [row["prediction"] for row in written] == texts

    def test_of_sampled_beams(self, make_job: Make, t5: Path, model: Any, tmp_path: Path) -> None:
        task = {"num_beams": 2, "generation": {"do_sample": True}}
        objective = bound(make_job(task), model, AutoTokenizer.from_pretrained(t5))
        rows: list[list[int]] = []
        torch.manual_seed(1)
        forward = in_batches(model, 6, seen=rows)
        found = objective.evaluate("validation", forward, tmp_path)
        ends = [row.index(END) if END in row else len(row) - 1 for row in rows]
        assert min(ends) < max(ends)
        assert found.metrics["gen_len"] == pytest.approx(sum(ends) / len(ends))


PAD, END = 0, 1


def in_batches(model: Any, size: int, seen: list[list[int]] | None = None) -> Forward:
    def forward(
        features: Any, collate: Any, run: Any = None, **_options: Any
    ) -> Iterator[tuple[list[int], Any]]:
        for first in range(0, len(features), size):
            indices = list(range(first, min(first + size, len(features))))
            with torch.no_grad():
                output = run(model, collate([features[index] for index in indices]))
            if seen is not None:
                seen.extend(output.tokens.tolist())
            yield indices, output

    return forward


class TestLanguages:
    @pytest.fixture
    def mbart(self, tmp_path: Path) -> Path:
        return save_tiny_mbart(tmp_path / "mbart")

    def make(self, make_job: Make, model: Path, **task: Any) -> StagedJob:
        job = make_job({"max_source_length": 24, **task}, model=model)
        job.body["task"]["type"] = "translation"
        pairs = [{"translation": {"en": f"a cat {word}", "ro": f"o {word}"}} for word in WORDS]
        for split in ("train", "validation"):
            job.body["dataset"][split] = write_rows(job.home / f"{split}.jsonl", pairs)
        return job

    def test_texts_are_marked_and_decoding_starts_with_the_target(
        self, make_job: Make, mbart: Path
    ) -> None:
        job = self.make(
            make_job, mbart, source_lang="en_XX", target_lang="ro_RO", forced_bos_token="ro_RO"
        )
        result, _ = job.train()
        tokenizer: Any = AutoTokenizer.from_pretrained(mbart)
        english, romanian = tokenizer.convert_tokens_to_ids(["en_XX", "ro_RO"])
        first = job.splits["train"].features[0]
        assert (first["input_ids"][-1], first["labels"][-1]) == (english, romanian)
        finished = AutoModelForSeq2SeqLM.from_pretrained(job.output(result))
        assert finished.config.decoder_start_token_id == romanian
        assert finished.generation_config.forced_bos_token_id == romanian
        tokens = finished.generate(torch.tensor([first["input_ids"]]), max_length=6)
        assert tokens[0, :2].tolist() == [romanian, romanian]
        assert "eval_bleu" in result.metrics

    @pytest.mark.parametrize(
        ("task", "message"),
        [
            ({"target_lang": "ro_RO"}, "Set `task.source_lang`"),
            ({"source_lang": "en_YY", "target_lang": "ro_RO"}, "'en_YY', which the tokenizer"),
        ],
    )
    def test_wrong_codes(
        self, make_job: Make, mbart: Path, task: dict[str, str], message: str
    ) -> None:
        with fails_with(FailureCode.INVALID_OPTION, message):
            self.make(make_job, mbart, **task).prepare()

    def test_a_tokenizer_that_marks_texts_needs_the_language(
        self, make_job: Make, mbart: Path
    ) -> None:
        with pytest.raises(StageError, match=r"`task\.lang` is required: MBartTokenizer"):
            make_job({"max_source_length": 24}, model=mbart).prepare()

    def test_an_unknown_first_token(self, make_job: Make) -> None:
        with pytest.raises(StageError, match=r"`task\.forced_bos_token` is 'xx'"):
            make_job({"forced_bos_token": "xx"}).train()


WORDS = ["sat", "ran", "slept", "ate"]
