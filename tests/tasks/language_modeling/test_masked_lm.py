"""worker.tasks.language_modeling.masked_lm and its masks."""

import math
import shutil
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, Final

import datasets
import numpy as np
import pytest
import torch
import transformers

from service.contract.failures import FailureCode
from tests.support.models import save_tiny_bert, save_tiny_gpt2
from tests.tasks.stages import StagedJob, job_of
from tests.training.support.jobs import PLAIN, fails_with
from worker.tasks.base import PreparedSplit, load_splits
from worker.tasks.common.padding import Padding
from worker.tasks.language_modeling.masked_lm import MaskedLMObjective
from worker.tasks.language_modeling.masking import EpochMasks, MaskedFeatures, Masking
from worker.training.batches import samplers
from worker.training.kernels.padding_free import round_up

TEXTS = [
    "The lobster's unmistakable bioluminescence was catalogued near Gothenburg.",
    "",
    "Crustaceans respire through feathery gills, and shed exoskeletons irregularly.",
    "It was read by the board in the morning.",
] * 10

Make = Callable[..., StagedJob]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_bert(tmp_path_factory.mktemp("bert") / "model", dropout=0.0)


@pytest.fixture(scope="module")
def tokenizer(bert: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(bert)


@pytest.fixture
def make(tmp_path: Path, bert: Path) -> Make:
    made = iter(range(100))

    def make_job(
        texts: list[str] = TEXTS,
        training: dict[str, Any] | None = None,
        model: Path = bert,
        **task: Any,
    ) -> StagedJob:
        home = tmp_path / f"home-{next(made)}"
        rows = [{"text": text} for text in texts]
        dataset = {"train": rows, "validation": rows[2:9], "test": rows[:4]}
        options = PLAIN | {"logging_steps": 1, "learning_rate": 1e-2} | (training or {})
        task = {"type": "masked-lm", "max_seq_length": 16, **task}
        return job_of(home, task, model, dataset, options)

    return make_job


def features_of(job: StagedJob, split: str = "train") -> Any:
    prepared = job.prepare()
    return load_splits(prepared.prepared_dir)[split].features


class TestPrepare:
    def test_grouped(self, make: Make, tokenizer: Any) -> None:
        job = make()
        features = features_of(job)
        everything = list(chain.from_iterable(tokenizer(text).input_ids for text in TEXTS))
        whole = len(everything) // 16 * 16
        assert list(chain.from_iterable(features["input_ids"])) == everything[:whole]
        counts = job.prepared.splits["train"]
        assert (counts["tokens"], counts["dropped_tokens"]) == (
            len(everything),
            len(everything) - whole,
        )

    def test_line_by_line(self, make: Make, tokenizer: Any) -> None:
        job = make(line_by_line=True)
        features = features_of(job)
        kept = [(row, text) for row, text in enumerate(TEXTS) if text]
        assert features["row"] == [row for row, _ in kept]
        expected = [tokenizer(text, truncation=True, max_length=16).input_ids for _, text in kept]
        assert features["input_ids"] == expected
        lengths = [len(tokenizer(text).input_ids) for _, text in kept]
        over = sum(max(length - 16, 0) for length in lengths)
        assert over > 0
        # The two specials of each empty row are not the user's text.
        assert job.prepared.splits["train"] == {
            "examples": 40,
            "features": 30,
            "tokens": sum(lengths),
            "dropped_tokens": over,
            "empty_rows": 10,
        }
        messages = [getattr(notice, "message", "") for notice in job.notices]
        assert any("rows are cut to 16 tokens" in message for message in messages)

    def test_a_row_of_one_token_too_many_is_cut(self, make: Make, tokenizer: Any) -> None:
        texts = [
            "the board in the morning was read by the board " + "in " * n for n in (0, 1, 2)
        ] * 4
        length = len(tokenizer(texts[1]).input_ids)
        job = make(texts, line_by_line=True, max_seq_length=length)
        assert {len(ids) for ids in features_of(job)["input_ids"]} == {length - 1, length}
        assert job.prepared.splits["train"]["dropped_tokens"] == 4

    def test_words(self, make: Make, tokenizer: Any) -> None:
        features = features_of(make(line_by_line=True, whole_word_mask=True))
        tokens = tokenizer.convert_ids_to_tokens(features[0]["input_ids"])
        apart = [int(not token.startswith("##")) for token in tokens]
        assert sum(apart) < len(apart)
        assert features[0]["starts"] == apart

    def test_specials_are_words_of_their_own(self, make: Make, tokenizer: Any) -> None:
        """Also after a text whose last word has number 1, and where two stand together."""
        features = features_of(
            make(["the report", ""] * 20, max_seq_length=8, whole_word_mask=True)
        )
        tokens = tokenizer.convert_ids_to_tokens(features[0]["input_ids"])
        assert tokens[:6] == ["[CLS]", "the", "report", "[SEP]", "[CLS]", "[SEP]"]
        assert features[0]["starts"] == [1] * 8

    def test_only_empty_rows(self, make: Make) -> None:
        with fails_with(
            FailureCode.EMPTY_DATASET, "All rows of the train split are empty"
        ) as raised:
            make(["", " "] * 5, line_by_line=True).prepare()
        assert raised.value.failure.details == {"split": "train"}

    def test_a_tokenizer_without_mask_token(self, make: Make, bert: Path, tmp_path: Path) -> None:
        gpt2 = save_tiny_gpt2(tmp_path / "gpt2")
        maskless = transformers.AutoTokenizer.from_pretrained(gpt2)
        maskless.pad_token = maskless.eos_token
        maskless.save_pretrained(gpt2)
        job = make()
        job.body["model"] = {"name_or_path": str(bert), "tokenizer_name": str(gpt2)}
        with fails_with(FailureCode.INVALID_OPTION, "has no mask token"):
            job.prepare()


IDS = np.tile(np.arange(1000, 2000), 40)


class TestMasking:
    @pytest.fixture
    def masking(self, tokenizer: Any) -> Masking:
        return Masking.for_tokenizer(tokenizer, 42, 0.15)

    def test_shares(self, masking: Masking) -> None:
        masked, labels = masking(IDS, None, 1, 0)
        chosen = labels != -100
        assert np.array_equal(labels[chosen], IDS[chosen])
        assert np.array_equal(masked[~chosen], IDS[~chosen])
        assert chosen.mean() == pytest.approx(0.15, abs=0.01)
        as_mask = (masked == 103) & chosen
        same = (masked == IDS) & chosen
        other = chosen & ~as_mask & ~same
        for part, share in ((as_mask, 0.8), (same, 0.1), (other, 0.1)):
            assert part.sum() / chosen.sum() == pytest.approx(share, abs=0.02)
        assert len(np.unique(masked[other])) > 400

    def test_the_probability_is_the_jobs(self, tokenizer: Any) -> None:
        _, labels = Masking.for_tokenizer(tokenizer, 42, 0.4)(IDS, None, 1, 0)
        assert (labels != -100).mean() == pytest.approx(0.4, abs=0.02)

    def test_specials_never(self, tokenizer: Any) -> None:
        masking = Masking.for_tokenizer(tokenizer, 42, 0.999)
        specials = np.array(sorted(tokenizer.all_special_ids))
        ids = np.tile(np.concatenate([specials, [2000, 3000]]), 500)
        masked, labels = masking(ids, None, 1, 0)
        special = np.isin(ids, specials)
        assert (labels[special] == -100).all()
        assert np.array_equal(masked[special], ids[special])
        assert (labels[~special] != -100).mean() > 0.99
        # Nor does one stand in the place of a token, the mask apart.
        assert set(masked[~special].tolist()) & set(specials.tolist()) == {103}

    def test_whole_words(self, masking: Masking) -> None:
        starts = np.tile(np.array([1, 0, 0, 1, 1, 0], dtype=np.int8), len(IDS) // 6)
        ids = IDS[: len(starts)]
        _, labels = masking(ids, starts, 1, 0)
        chosen = labels != -100
        words = np.cumsum(starts)
        per_word = [set(chosen[words == word].tolist()) for word in range(1, 2000)]
        assert all(len(values) == 1 for values in per_word)
        assert chosen.mean() == pytest.approx(0.15, abs=0.015)

    def test_whole_words_where_every_token_is_one(self, masking: Masking) -> None:
        _, labels = masking(IDS, np.ones(len(IDS), dtype=np.int8), 1, 0)
        assert (labels != -100).mean() == pytest.approx(0.15, abs=0.015)

    def test_a_pure_function(self, masking: Masking, tokenizer: Any) -> None:
        def chosen(masking: Masking, draw: int, index: int) -> list[int]:
            ids, labels = masking(IDS[:64], None, draw, index)
            return [*ids.tolist(), *labels.tolist()]

        first = chosen(masking, 1, 0)
        np.random.seed(5)
        assert chosen(Masking.for_tokenizer(tokenizer, 42, 0.15), 1, 0) == first
        assert chosen(masking, 2, 0) != first
        assert chosen(masking, 1, 1) != first
        assert chosen(Masking.for_tokenizer(tokenizer, 43, 0.15), 1, 0) != first


class TestFeatures:
    def test_fresh_each_epoch_and_fixed_for_evaluation(self, tokenizer: Any) -> None:
        masking = Masking.for_tokenizer(tokenizer, 1, 0.5)
        rows = [{"input_ids": IDS[:32].tolist()}] * 3
        train = EpochMasks(rows, masking)

        def masks(features: Any) -> list[list[int]]:
            return [features[index]["labels"].tolist() for index in range(len(features))]

        assert masks(train.at_epoch(0)) == masks(train.at_epoch(0))
        assert masks(train.at_epoch(0)) != masks(train.at_epoch(1))
        evaluated = masks(MaskedFeatures(rows, masking))
        assert evaluated == masks(MaskedFeatures(rows, masking))
        assert evaluated not in [masks(train.at_epoch(epoch)) for epoch in range(3)]
        # Equal rows have masks of their own.
        assert len({tuple(mask) for mask in evaluated}) == 3

    def test_of_whole_words(self, tokenizer: Any) -> None:
        row = {"input_ids": IDS[:32].tolist(), "starts": [1, 0] * 16}
        labels = MaskedFeatures([row], Masking.for_tokenizer(tokenizer, 1, 0.5))[0]["labels"]
        chosen = (labels != -100).reshape(16, 2)
        assert chosen.any()
        assert (chosen[:, 0] == chosen[:, 1]).all()


class TestJob:
    TRAINING: Final = {"per_device_train_batch_size": 4, "max_steps": 20}

    @pytest.mark.parametrize("line_by_line", [False, True])
    def test_predictions_of_the_test_split(self, make: Make, line_by_line: bool) -> None:
        job = make(training=self.TRAINING, line_by_line=line_by_line, mlm_probability=0.5)
        result, _ = job.train()
        rows = job.predictions("test/predictions.json")
        output = job.output(result)
        model = transformers.AutoModelForMaskedLM.from_pretrained(output)
        tokenizer = transformers.AutoTokenizer.from_pretrained(output)
        features = job.splits["test"].features
        masking = Masking.for_tokenizer(tokenizer, 42, 0.5)
        masked = MaskedFeatures(features, masking)
        keys = [{"row": row} for row in (0, 2, 3)] if line_by_line else [{"block": 0}, {"block": 1}]
        assert len(rows) == len(masked) == len(keys) if line_by_line else len(rows) >= 2
        for index, row in enumerate(rows):
            labels = torch.tensor(masked[index]["labels"])[None]
            with torch.no_grad():
                found = model(torch.tensor(masked[index]["input_ids"])[None], labels=labels)
            asked = labels != -100
            right = (found.logits.argmax(-1) == labels)[asked].double().mean()
            assert row == {
                **({"row": keys[index]["row"]} if line_by_line else {"block": index}),
                "tokens": int(asked.sum()),
                "loss": pytest.approx(float(found.loss), rel=1e-4),
                "perplexity": pytest.approx(math.exp(float(found.loss)), rel=1e-3),
                "accuracy": pytest.approx(float(right)),
            }

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_samples(self, make: Make, bert: Path, tmp_path: Path, side: str) -> None:
        """What the finished model holds likeliest where the validation split was masked."""
        tokenizer = transformers.AutoTokenizer.from_pretrained(bert, padding_side=side)
        shutil.copytree(bert, tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
        training = {**self.TRAINING, "max_steps": 5}
        job = make(
            training=training, model=tmp_path / "model", line_by_line=True, mlm_probability=0.5
        )
        result, _ = job.train()
        model = transformers.AutoModelForMaskedLM.from_pretrained(job.output(result))
        features = job.splits["validation"].features
        masked = MaskedFeatures(features, Masking.for_tokenizer(tokenizer, 42, 0.5))
        rows = features["row"]
        assert [sample["row"] for sample in result.samples] == [rows[at] for at in (0, 2, 4)]
        padding = Padding(tokenizer, model)
        with torch.no_grad():
            every = model(**padding.inputs(list(masked))).logits
        shifts = padding.shifts(features["input_ids"])
        for sample, at in zip(result.samples, (0, 2, 4), strict=True):
            ids, labels = masked[at]["input_ids"], masked[at]["labels"]
            assert sample["text"] == tokenizer.decode(ids)
            logits = every[at, shifts[at] :]
            places = [place for place, token in enumerate(ids) if token == tokenizer.mask_token_id]
            assert sample["masks"] == [
                {
                    "reference": tokenizer.decode([labels[place]]),
                    "predictions": [tokenizer.decode([t]) for t in logits[place].topk(3).indices],
                }
                for place in places[:5]
            ]
        assert any(sample["masks"] for sample in result.samples)

    @pytest.mark.heavy
    @pytest.mark.usefixtures("processes")
    def test_other_processes_make_the_same_batches(self, make: Make) -> None:
        training = {"per_device_train_batch_size": 4, "num_train_epochs": 2}
        weights = {
            make(training={**training, **workers}).train()[0].weights_sha256
            for workers in (
                {},
                {"dataloader_num_workers": 2, "dataloader_persistent_workers": True},
            )
        }
        assert len(weights) == 1

    def test_batches_of_similar_length(self, make: Make) -> None:
        """Their lengths are known without masking anything."""
        job = make(
            line_by_line=True,
            training={"max_steps": 3, "train_sampling_strategy": "group_by_length"},
        )
        result, _ = job.train()
        assert result.steps == 3
        features = job.splits["train"].features
        expected = [len(ids) for ids in features["input_ids"]]
        unmasked = EpochMasks(features, _never)  # type: ignore[arg-type]
        assert samplers.lengths(unmasked).tolist() == expected

    def test_left_padding(self, make: Make, bert: Path, tmp_path: Path) -> None:
        """Labels move with the tokens that they are of: both sides have the same loss."""
        left = tmp_path / "left"
        tokenizer = transformers.AutoTokenizer.from_pretrained(bert)
        tokenizer.padding_side = "left"
        tokenizer.save_pretrained(left)
        model = transformers.AutoModelForMaskedLM.from_pretrained(bert)
        masking = Masking.for_tokenizer(tokenizer, 1, 0.5)
        rows = [{"input_ids": IDS[:size].tolist()} for size in (9, 5)]
        features = list(MaskedFeatures(rows, masking))
        padding = Padding(tokenizer, model)
        objective = MaskedLMObjective({"train": _Split(rows)}, masking, padding, tokenizer)  # type: ignore[dict-item]
        batch = objective.collate(features)
        assert batch["attention_mask"].tolist()[1] == [0] * 4 + [1] * 5
        assert batch["labels"][1, :4].tolist() == [-100] * 4
        assert batch["labels"][1, 4:].tolist() == features[1]["labels"].tolist()


def _never(*arguments: Any) -> Any:
    raise AssertionError(f"masked {arguments}")


class _Split:
    def __init__(self, rows: Any) -> None:
        self.examples = self.features = rows


@pytest.mark.parametrize("line_by_line", [False, True])
def test_padding_free_trains_alike(make: Make, line_by_line: bool) -> None:
    """With the head at the masked tokens alone, and lines without padding; evaluated so, too."""
    losses, results = [], []
    for padding_free in (False, True):
        job = make(
            training={"max_steps": 3, "padding_free": padding_free}, line_by_line=line_by_line
        )
        result, recorder = job.train()
        losses.append(recorder.train_values("loss"))
        results.append(result)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    one, other = results
    for name in ("eval_loss", "eval_accuracy"):
        assert one.metrics[name] == pytest.approx(other.metrics[name], rel=1e-5)
    assert one.samples == other.samples


@pytest.mark.parametrize("side", ["left", "right"])
def test_an_evaluation_makes_logits_of_masked_tokens_alone(
    bert: Path, tokenizer: Any, tmp_path: Path, side: str
) -> None:
    model = transformers.AutoModelForMaskedLM.from_pretrained(bert).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert, padding_side=side)
    rows = datasets.Dataset.from_list([{"input_ids": IDS[:size].tolist()} for size in (9, 5, 13)])
    split = PreparedSplit(rows, rows)
    seen: list[int] = []
    model.cls.register_forward_hook(lambda _m, _i, out: seen.append(out.shape[:2].numel()))

    def forward(features: Any, collate: Any, run: Any = None, **_: Any) -> Any:
        for indices in ([2, 0], [1]):
            with torch.no_grad():
                found = run(model, collate([features[index] for index in indices]))
            yield indices, found

    evaluations = []
    for bare in (None, model):
        objective = MaskedLMObjective(
            {"train": split, "validation": split},
            Masking.for_tokenizer(tokenizer, 1, 0.5),
            Padding(tokenizer, model),
            tokenizer,
            bare,
        )
        evaluations.append(objective.evaluate("validation", forward, tmp_path))
    whole, selected = evaluations
    assert whole is not None
    assert selected is not None
    assert seen[:2] == [26, 5]
    masks = MaskedFeatures(rows, Masking.for_tokenizer(tokenizer, 1, 0.5))
    counts = [int((masks[index]["labels"] != -100).sum()) for index in range(3)]
    assert seen[2:] == [round_up(counts[2] + counts[0]), round_up(counts[1])]
    assert min(counts) > 0
    assert selected.metrics == pytest.approx(whole.metrics, rel=1e-6)
    assert selected.samples == whole.samples


def test_a_share_of_a_batch_has_its_own_places(bert: Path, tokenizer: Any) -> None:
    model = transformers.AutoModelForMaskedLM.from_pretrained(bert).eval()
    masking = Masking.for_tokenizer(tokenizer, 1, 0.5)
    rows = [{"input_ids": IDS[:size].tolist()} for size in (9, 5, 13)]
    splits: Any = {"train": _Split(rows)}
    objective = MaskedLMObjective(splits, masking, Padding(tokenizer, model), tokenizer, model)
    batch = objective.collate(list(MaskedFeatures(rows, masking)))
    loss = 0.0
    for count in (1, 2, 3):
        cut = objective.first_rows(batch, count)
        assert cut["input_ids"].shape == (count, 13)
        wanted = cut["labels"] != -100
        labels = cut["labels"].flatten()[cut["places"]]
        asked = cut["places"][labels != -100]
        assert asked.tolist() == wanted.flatten().nonzero()[:, 0].tolist()
        with torch.no_grad():
            more = objective.loss_sum(model, cut).item()
        assert more > loss
        loss = more
