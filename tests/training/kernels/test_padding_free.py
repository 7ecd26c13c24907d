"""worker.training.kernels.padding_free and heads: the same numbers, without padding and unwanted
logits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional

from service.contract.failures import FailureCode
from service.contract.spec.spec import JobSpec
from service.contract.stage.events import Notice
from tests.training.checkpointing.resuming import assert_resumes
from tests.training.kernels.padding import LENGTHS, LLAMA, QA, SIZES, batch, gradients, right
from tests.training.support.jobs import Job, fails_with, run
from worker.training.kernels import cpu_attention, cpu_dropout, padding_free, selective_head

BERT = transformers.BertConfig(**SIZES)
ROBERTA = transformers.RobertaConfig(**{**SIZES, "pad_token_id": 1})
CONFIGS = {
    "bert": BERT,
    "roberta": ROBERTA,
    "electra": transformers.ElectraConfig(**SIZES),
    "llama": transformers.LlamaConfig(**LLAMA, num_key_value_heads=1),
}


def model_of(auto: Any, config: Any) -> Any:
    torch.manual_seed(0)
    model = auto.from_config(config)
    cpu_attention.register()
    model.set_attn_implementation(cpu_attention.NAME)
    return model.train()


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in other.items():
        torch.testing.assert_close(one[name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_models_numbers_are_those_of_the_padded_batch(name: str) -> None:
    model, given = model_of(QA, CONFIGS[name]), right(batch())
    real = given["attention_mask"].bool()
    padded = model(**given)
    expected = gradients(model, padded.start_logits[real].square().sum())
    seen: list[torch.Size] = []
    model.base_model.register_forward_hook(
        lambda _model, _inputs, output: seen.append(output[0].shape)
    )
    assert padding_free.install(model) is not None
    packed = model(**given)
    assert seen[-1] == (1, padding_free.round_up(sum(LENGTHS)), 32)
    torch.testing.assert_close(packed.start_logits[real], padded.start_logits[real])
    lowest = torch.finfo(torch.float32).min
    assert packed.end_logits[~real].unique().tolist() == [lowest]
    found = gradients(model, packed.start_logits[real].square().sum())
    assert_same(found, expected)


def test_a_classifiers_first_token_is_each_sequences_own() -> None:
    model, given = model_of(transformers.AutoModelForSequenceClassification, BERT), right(batch())
    expected = model(**given).logits
    packed = padding_free.install(model)
    assert packed is not None
    torch.testing.assert_close(model(**given).logits, expected)
    packed.used = False
    model(**given)
    assert packed.used


def test_a_rectangle_goes_in_whole() -> None:
    model = model_of(QA, BERT)
    given = {"input_ids": batch()["input_ids"], "attention_mask": torch.ones(4, 11).long()}
    expected = model(**given).start_logits
    packed = padding_free.install(model)
    assert packed is not None
    packed.used = False
    torch.testing.assert_close(model(**given).start_logits, expected)
    assert not packed.used


@pytest.mark.parametrize(
    "config",
    [
        transformers.DebertaV2Config(**SIZES),  # an attention of its own
        transformers.ModernBertConfig(**LLAMA),  # windows
    ],
)
def test_a_model_that_would_mix_the_sequences_stays_padded(config: Any) -> None:
    model = model_of(QA, config).eval()
    given = right(batch())
    before = model(**given).start_logits
    generator = torch.get_rng_state()
    assert padding_free.install(model) is None
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.equal(model(**given).start_logits, before)


def test_weights_in_half_precision() -> None:
    model = model_of(QA, BERT).bfloat16().eval()
    given = right(batch())
    real = given["attention_mask"].bool()
    expected = model(**given).start_logits[real].detach().float()
    generator = torch.get_rng_state()
    hooks = padding_free.install(model)
    assert torch.equal(torch.get_rng_state(), generator)
    found = model(**given).start_logits[real].detach().float()
    assert hooks is not None
    assert hooks.used
    assert float((found - expected).abs().max()) < 0.05 * float(expected.std())


def test_in_half_precision_a_model_that_would_mix_the_sequences_stays_padded() -> None:
    model = model_of(QA, transformers.DebertaV2Config(**SIZES)).bfloat16()
    assert padding_free.install(model) is None


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("name", ["bert", "roberta", "electra"])
def test_a_head_at_some_tokens_alone(name: str, padded: bool) -> None:
    model = model_of(transformers.AutoModelForMaskedLM, CONFIGS[name])
    given = right(batch())
    wanted = given["attention_mask"].bool()
    wanted[:, 1:3] = False
    expected = model(**given).logits[wanted]
    by_all = gradients(model, expected.square().sum())
    assert selective_head.can_select(model)
    if not padded:
        assert padding_free.install(model) is not None
    with selective_head.only_at(
        model, selective_head.positions_of(wanted), given["attention_mask"]
    ):
        found = model(**given).logits
    assert found.shape == (1, int(wanted.sum()), 99)
    torch.testing.assert_close(found[0], expected)
    assert_same(gradients(model, found.square().sum()), by_all)
    assert model(**given).logits.shape == (4, 11, 99)


@pytest.mark.parametrize("asked", [None, True])
def test_the_training_is_the_same(make_job: Callable[..., Job], asked: bool | None) -> None:
    options: dict[str, Any] = {"max_steps": 4, "save_strategy": "no", "dropout": 0.0}
    _, packed = run(make_job(**options, padding_free=asked).request())
    _, padded = run(make_job(**options).request())
    assert packed.train_values("loss") == pytest.approx(padded.train_values("loss"), rel=1e-5)
    notices = [each.data for each in packed.of(Notice) if "padding_free" in each.data]
    assert notices == [{"padding_free": True}]
    assert not [each for each in padded.of(Notice) if "padding_free" in each.data]


@pytest.mark.parametrize("adapter", [{"method": "lora", "r": 4}, {"method": "ia3"}])
def test_an_adapter_trains_the_same(make_job: Callable[..., Job], adapter: dict[str, Any]) -> None:
    losses = []
    for asked in (None, False):
        job = make_job(max_steps=3, save_strategy="no", dropout=0.0, padding_free=asked)
        request = job.request()
        spec = JobSpec.model_validate(request.spec.model_dump() | {"peft": adapter})
        _, recorder = run(request.model_copy(update={"spec": spec}))
        notices = [each for each in recorder.of(Notice) if "padding_free" in each.data]
        assert len(notices) == (asked is None)
        losses.append(recorder.train_values("loss"))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][3] != losses[0][1]


@pytest.mark.parametrize("asked", [None, True])
def test_a_model_that_cannot(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, asked: bool | None
) -> None:
    monkeypatch.setattr(padding_free, "install", lambda _model: None)
    job = make_job(max_steps=1, save_strategy="no", padding_free=asked)
    if asked is None:
        assert run(job.request())[0].steps == 1
        return
    with fails_with(FailureCode.INVALID_OPTION) as caught:
        run(job.request())
    assert caught.value.failure.details == {"option": "training.padding_free"}


def test_an_attention_that_computes_otherwise_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a model that hands its attention something that ours does not know."""
    model = model_of(QA, BERT)
    model.set_attn_implementation("eager")
    plain = cpu_attention.attention

    def other(*arguments: Any, **options: Any) -> Any:
        mixed, weights = plain(*arguments, **options)
        return mixed * 1.01, weights

    monkeypatch.setattr(cpu_attention, "attention", other)
    assert padding_free.install(model) is None
    assert model.config._attn_implementation == "eager"


def test_resumes_exactly(make_job: Callable[..., Job]) -> None:
    """With dropout, drawn by our own attention."""
    assert_resumes(make_job(max_steps=6, save_steps=3, padding_free=True), 3)


def test_questions_in_small_batches_are_the_large_batch() -> None:
    """The softmax of a span reaches over all positions, and there are none of padding."""
    model, given = model_of(QA, BERT), right(batch())
    last = torch.tensor(LENGTHS) - 1

    def loss(rows: slice) -> torch.Tensor:
        longest = int(last[rows].max()) + 1
        output = model(**{name: value[rows, :longest] for name, value in given.items()})
        starts = functional.cross_entropy(output.start_logits, last[rows] // 2, reduction="sum")
        return starts + functional.cross_entropy(output.end_logits, last[rows], reduction="sum")

    def in_parts(size: int) -> dict[str, torch.Tensor]:
        parts = [loss(slice(first, first + size)) for first in range(0, 4, size)]
        found = gradients(model, torch.stack(parts).sum())
        model.zero_grad()
        return found

    name = "qa_outputs.weight"
    assert (in_parts(1)[name] - in_parts(4)[name]).abs().max() > 1e-3  # padding takes part
    assert padding_free.install(model) is not None
    for name, value in in_parts(4).items():
        for size in (1, 2):
            torch.testing.assert_close(in_parts(size)[name], value, rtol=0, atol=1e-6, msg=name)


def test_rows_of_few_lengths_occur_in_an_epoch() -> None:
    """Random batches of 8 sequences of up to 384 tokens: hardly two have as many."""
    generator = torch.Generator().manual_seed(0)
    totals = torch.randint(40, 385, (2000, 8), generator=generator).sum(dim=1).tolist()
    assert len(set(totals)) > 800
    assert len({padding_free.round_up(total) for total in totals}) <= 64
    for tokens in (1, 8, 63, 64, 65, 1000, 1024, 1025, 4097, 100_000):
        assert tokens <= padding_free.round_up(tokens) <= max(tokens + 7, tokens * 33 // 32)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("side", ["left", "right"])
def test_filler_changes_neither_the_loss_nor_its_gradient(
    monkeypatch: pytest.MonkeyPatch, dropout: float, side: str
) -> None:
    """With dropout, too: the real tokens' numbers are drawn as without filler."""
    sizes = {**SIZES, "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    model = model_of(QA, transformers.BertConfig(**sizes))
    cpu_dropout.install(model)
    given = batch() if side == "left" else right(batch())
    real = given["attention_mask"].bool()
    assert padding_free.install(model) is not None
    widths: list[int] = []
    model.base_model.register_forward_hook(
        lambda _model, _inputs, output: widths.append(output[0].shape[1])
    )

    def step() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        torch.manual_seed(3)
        output = model(**given)
        loss = (
            functional.cross_entropy(
                torch.cat((output.start_logits, output.end_logits)), torch.arange(8) % 5 + 3
            )
            + output.start_logits[real].square().mean()
        )
        return loss.detach(), gradients(model, loss)

    with_filler = step()
    monkeypatch.setattr(padding_free, "round_up", lambda tokens: tokens)
    without = step()
    assert widths == [32, sum(LENGTHS)]
    torch.testing.assert_close(with_filler[0], without[0], rtol=1e-6, atol=0)
    assert_same(with_filler[1], without[1])


def test_a_row_is_never_taken_for_a_rectangle() -> None:
    """One sequence of 7 tokens in 8 places: filled up it would have the rectangle's shape."""
    mask = torch.ones(1, 8).long()
    mask[0, 0] = 0
    layout = padding_free._Layout.from_mask(mask)
    assert layout.width == 7


def test_the_head_is_asked_at_few_different_numbers_of_places() -> None:
    wanted = torch.zeros(2, 40, dtype=torch.bool)
    wanted[0, 3:14] = True
    unwanted = ~wanted
    unwanted[0, 0] = False  # padding
    places = selective_head.positions_of(wanted, unwanted)
    assert len(places) == padding_free.round_up(11) == 16
    assert places.tolist() == [*[1] * 5, *range(3, 14)]
    assert selective_head.positions_of(wanted).tolist() == [*range(3, 14)]
    assert len(selective_head.positions_of(wanted, torch.zeros_like(wanted))) == 11
