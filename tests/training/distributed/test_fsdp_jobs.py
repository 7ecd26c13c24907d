"""FSDP: two processes that hold half of the weights each train as one process does."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from service.contract.stage.events import Notice
from tests.support.models import (
    save_tiny_bert,
    save_tiny_gpt2,
    save_tiny_llama,
    save_tiny_t5,
    save_tiny_xlnet,
)
from tests.training.support.pairs import (
    CHOSEN,
    EXAMPLES,
    Both,
    SameAsOne,
    Suite,
    adapted,
    answers,
    assert_equal,
    assert_resumed,
    assert_same_model,
    assert_written_in_the_background,
    example,
    heavy,
    of_rows,
    questions,
    texts,
    with_heavy,
)

# In each run the doctor's check `ranks-fsdp` has the losses of one process (tests/doctor).
pytestmark = [pytest.mark.long, pytest.mark.heavy]

SUMMARIES = EXAMPLES / "seq2seq" / "summaries-train.jsonl"


def fsdp(**options: Any) -> dict[str, Any]:
    return {"type": "fsdp", **options}


def _summaries(model: Path) -> Callable[[Path], dict[str, Any]]:
    data = [json.loads(line) for line in SUMMARIES.read_text().splitlines()[:12]]
    task = {"max_source_length": 48, "max_target_length": 12, "num_beams": 2}
    return of_rows("summarization", model, data, data[:4], **task)


def _kto(model: Path, home: Path) -> dict[str, Any]:
    return answers("preference", model, loss_type="kto")(home)


def _tiny(suite: Suite) -> None:
    """Each has two or three options; the model's own blocks are two."""
    few: dict[str, Any] = {"max_steps": 3}
    suite.tiny("plain", **few, neftune_noise_alpha=1e-9)
    accumulated = {"gradient_accumulation_steps": 3, "max_steps": 1, "max_grad_norm": 0.0}
    suite.tiny("gradients", keeps_gradients=True, learning_rate=0.0, **accumulated)
    clipped: dict[str, Any] = {
        "gradient_accumulation_steps": 3,
        "max_grad_norm": 0.1,
        "optim": "adamw_torch_fused",
    }
    suite.tiny("clipped", **clipped, strategy=fsdp(sync_each_batch=True))
    one = fsdp(auto_wrap_policy="no_wrap")
    suite.tiny("one group", **few, strategy=one, optim="adagrad", padding_free=True)
    kept = fsdp(
        auto_wrap_policy="size_based_wrap", min_num_params=3000, reshard_after_forward=False
    )
    suite.tiny("by size, kept", **few, strategy=kept, optim="sgd", optim_args="momentum=0.9")
    suite.tiny("bf16", **few, bf16=True)
    half = {"param_dtype": "bfloat16", "reduce_dtype": "bfloat16"}
    suite.tiny("half", **few, strategy=fsdp(mixed_precision_policy=half))
    smoothed: dict[str, Any] = {"label_smoothing_factor": 0.1, "optim": "rmsprop"}
    suite.tiny("checkpointed", **few, **smoothed, gradient_checkpointing=True)
    suite.tiny("best", **CHOSEN)
    suite.tiny("whole", gradient_accumulation_steps=3, save_steps=1, dropout=0.1, max_steps=6)


FEW: dict[str, Any] = {"max_steps": 2}


def _tasks(suite: Suite, folder: Path) -> None:
    gpt2 = save_tiny_gpt2(folder / "gpt2", dropout=0.0)
    suite.task("causal-lm", texts("causal-lm", gpt2), **FEW)
    lora = {"method": "lora", "target_modules": ["c_attn"]}
    suite.task("merged", adapted(gpt2, **lora, merge=True), **FEW)
    # Without unanswerable questions a third of the head gets no gradient.
    xlnet = save_tiny_xlnet(folder / "xlnet", dropout=0.0)
    beams = questions(xlnet, head="beam-search", start_n_top=3, end_n_top=3)
    suite.task("beam search", beams, **FEW)
    llama = save_tiny_llama(folder / "llama")
    narrow = {"peft": {"method": "lora", "target_modules": ["q_proj"]}}
    suite.task("kto with lora", lambda home: _kto(llama, home) | narrow, **FEW)


def _further_tasks(suite: Suite, folder: Path) -> None:
    suite.task("masked-lm", texts("masked-lm", folder / "bert"), **FEW)
    words = [json.loads(line)["text"] for line in SUMMARIES.read_text().splitlines()[:60]]
    t5 = save_tiny_t5(folder / "t5", words, dropout=0.0)
    suite.task("summarization", _summaries(t5), **FEW)
    suite.task("preference", answers("preference", folder / "llama"), **FEW)


@pytest.fixture(scope="module")
def ran(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, processes: None
) -> dict[str, Both]:
    folder = tmp_path_factory.mktemp("fsdp")
    suite = Suite(folder, "fsdp")
    _tiny(suite)
    suite.resume("resumed", "whole", 4)
    _tasks(suite, folder)
    bert = save_tiny_bert(folder / "bert", dropout=0.0, tokens=30_522)
    suite.then("example", example(folder / "example", "question-answering-fsdp.yaml", bert))
    if with_heavy(request):
        _further_tasks(suite, folder)
    return suite.run()


def _held(both: Both) -> dict[str, int]:
    notices = both.two.recorder.of(Notice)
    return next(notice.data for notice in notices if notice.message.startswith("FSDP: "))


class TestSameAsOne(SameAsOne):
    @pytest.mark.parametrize(
        "name",
        [
            *("plain", "clipped", "one group", "by size, kept", "checkpointed", "best"),
            *("causal-lm", "merged", "beam search", "kto with lora"),
            *heavy("masked-lm", "summarization", "preference"),
        ],
    )
    def test_losses_and_metrics(self, ran: dict[str, Both], name: str) -> None:
        assert_equal(ran[name])

    @pytest.mark.parametrize("name", ["bf16", "half"])
    def test_halves(self, ran: dict[str, Both], name: str) -> None:
        """Sums of bfloat16 numbers are rounded in another order, and the weights of `half`."""
        assert_equal(ran[name], rel=1e-3)
        assert ran[name].two.losses != pytest.approx(ran["plain"].two.losses, rel=1e-6)


class TestSplit:
    @pytest.mark.parametrize(
        ("name", "groups"),
        [("plain", 3), ("one group", 1), ("by size, kept", 7), ("beam search", 3)],
    )
    def test_each_block_is_a_group(self, ran: dict[str, Both], name: str, groups: int) -> None:
        assert _held(ran[name])["groups"] == groups

    def test_each_process_holds_half(self, ran: dict[str, Both]) -> None:
        held = _held(ran["plain"])
        assert held["own_bytes"] == pytest.approx(held["bytes"] / 2, rel=0.01)


class TestFinished:
    def test_the_model_is_that_of_one_process(self, ran: dict[str, Both]) -> None:
        assert_same_model(ran["causal-lm"])

    def test_adapters_have_the_same_files(self, ran: dict[str, Both]) -> None:
        for name in ("kto with lora", "merged"):
            one, two = (
                {file.name for file in (o.request.workspace / str(o.result.output_dir)).iterdir()}
                for o in (ran[name].one, ran[name].two)
            )
            assert one == two

    def test_the_example_learns(self, ran: dict[str, Both]) -> None:
        result = ran["example"].two.result
        assert result.metrics["eval_loss"] < result.baseline["eval_loss"]


class TestResume:
    def test_is_exact(self, ran: dict[str, Both]) -> None:
        assert_resumed(ran["resumed"].two, ran["whole"].two, 4)

    def test_checkpoints_are_written_in_the_background(self, ran: dict[str, Both]) -> None:
        assert_written_in_the_background(ran["whole"].two)

    def test_a_checkpoint_is_that_of_one_process(self, ran: dict[str, Both]) -> None:
        one, two = (
            outcome.request.attempt_dir / "checkpoints" / "4"
            for outcome in (ran["whole"].one, ran["whole"].two)
        )
        states = [torch.load(folder / "optimizer.pt")["state"] for folder in (one, two)]
        assert [{n: v.shape for n, v in each.items()} for each in states[0].values()] == [
            {n: v.shape for n, v in each.items()} for each in states[1].values()
        ]
        weights = [load_file(folder / "model.safetensors") for folder in (one, two)]
        assert {n: v.shape for n, v in weights[0].items()} == {
            n: v.shape for n, v in weights[1].items()
        }
