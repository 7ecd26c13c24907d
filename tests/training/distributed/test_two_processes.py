"""Two processes train as one does on the same global batch, for several tasks and options."""

import json
from typing import Any

import pytest
import torch

from service.contract.stage.events import Notice
from tests.support.models import save_tiny_bert, save_tiny_gpt2, save_tiny_llama, save_tiny_xlnet
from tests.training.support.pairs import (
    CHOSEN,
    Both,
    SameAsOne,
    Suite,
    answers,
    assert_equal,
    assert_equal_values,
    assert_resumed,
    conversations,
    example,
    heavy,
    judged,
    questions,
    texts,
    with_heavy,
)

pytestmark = pytest.mark.long

RESUMED: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 3,
    "save_steps": 1,
}


@pytest.fixture(scope="module")
def ran(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, processes: None
) -> dict[str, Both]:
    folder = tmp_path_factory.mktemp("two")
    suite = Suite(folder)
    suite.tiny("plain", num_train_epochs=1)
    accumulated = {"gradient_accumulation_steps": 3, "max_steps": 1, "max_grad_norm": 0.0}
    suite.tiny("gradients", keeps_gradients=True, learning_rate=0.0, **accumulated)
    clipped: dict[str, Any] = {"gradient_accumulation_steps": 3, "max_grad_norm": 0.1}
    suite.tiny("grouped and clipped", **clipped, group_by_length=True)
    suite.tiny("bf16", num_train_epochs=1, bf16=True)
    logged: dict[str, Any] = {"logging_steps": 7, "include_num_input_tokens_seen": "all"}
    suite.tiny("smoothed, logged seldom", **logged, label_smoothing_factor=0.1)
    suite.tiny("best", **CHOSEN)
    suite.tiny("own options", num_train_epochs=1, dataloader_num_workers=1,
        strategy={"type": "ddp", "find_unused_parameters": False, "bucket_cap_mb": 1,
        "gradient_as_bucket_view": True, "broadcast_buffers": False, "static_graph": True,
        "timeout": 60})  # fmt: skip
    bert, gpt2 = save_tiny_bert(folder / "bert", dropout=0.0, tokens=30_522), folder / "gpt2"
    suite.task("question-answering", questions(bert))
    save_tiny_gpt2(gpt2, dropout=0.0)
    lora = {"peft": {"method": "lora", "target_modules": ["c_attn"]}}
    suite.task("lora", lambda home: {**texts("causal-lm", gpt2)(home), **lora})
    suite.task("masked-lm", texts("masked-lm", bert))
    talks = conversations(save_tiny_llama(folder / "llama"), packing="bfd", max_length=64)
    suite.task("chat", talks)
    suite.task("preference", answers("preference", folder / "llama"))
    # A step has a batch of four answers, and one of a single answer for two processes.
    few: dict[str, Any] = {"gradient_accumulation_steps": 2, "learning_rate": 3e-3}
    suite.task("few answers", judged(folder / "llama"), **few)
    suite.task("reward", answers("reward", folder / "llama"))
    shown = example(folder / "example", "question-answering-two-processes.yaml", bert)
    suite.then("example", shown)
    suite.tiny("whole", **RESUMED, dropout=0.1, logging_steps=2)
    steps = [4, 6]  # also before an epoch's shorter last step
    if with_heavy(request):
        # Without unanswerable questions a third of the head gets no gradient.
        xlnet = save_tiny_xlnet(folder / "xlnet", dropout=0.0)
        suite.task("beam search", questions(xlnet, head="beam-search", start_n_top=3, end_n_top=3))
        suite.task("causal-lm", texts("causal-lm", gpt2))
        suite.task("kto", answers("preference", folder / "llama", loss_type="kto"))
        steps.append(1)
    for number, step in enumerate(steps, start=2):
        suite.resume(f"resumed {step}", "whole", step, number)
    return suite.run()


class TestSameAsOne(SameAsOne):
    @pytest.mark.parametrize(
        "name",
        [
            *("plain", "grouped and clipped", "smoothed, logged seldom", "best", "own options"),
            *("question-answering", "masked-lm", "lora", "chat", "preference"),
            *("few answers", "reward", *heavy("beam search", "causal-lm", "kto")),
        ],
    )
    def test_losses_and_metrics(self, ran: dict[str, Both], name: str) -> None:
        assert_equal(ran[name])

    def test_further_values(self, ran: dict[str, Both]) -> None:
        assert_equal_values(ran["preference"], "rewards/margins", "rewards/accuracies")
        assert_equal_values(ran["few answers"], "kl", "rewards/margins", "logps/chosen")
        assert max(ran["few answers"].one.recorder.train_values("kl").values()) > 0.01
        assert_equal_values(ran["reward"], "margin", "accuracy")

    @pytest.mark.heavy
    def test_further_values_of_pairs_as_single_answers(self, ran: dict[str, Both]) -> None:
        assert_equal_values(ran["kto"], "kl", "rewards/chosen", "logps/rejected")

    def test_bf16(self, ran: dict[str, Both]) -> None:
        """Sums of bfloat16 products are rounded in another order."""
        assert_equal(ran["bf16"], rel=1e-3)
        assert ran["bf16"].two.losses != ran["plain"].two.losses

    def test_all_examples_are_counted_once(self, ran: dict[str, Both]) -> None:
        both = ran["smoothed, logged seldom"]
        epochs = [outcome.result.epochs for outcome in (both.one, both.two)]
        assert epochs == [2.0, 2.0]
        rates = both.two.result.metrics
        examples = rates["train_samples_per_second"] * rates["train_runtime"]
        assert examples == pytest.approx(2 * 37)

    def test_the_training_stopped_early(self, ran: dict[str, Both]) -> None:
        assert ran["best"].two.result.steps < 20  # of the steps that two epochs have


class TestExample:
    def test_it_learns(self, ran: dict[str, Both]) -> None:
        result = ran["example"].two.result
        assert result.steps == 3
        assert result.metrics["eval_loss"] < result.baseline["eval_loss"]
        notices = ran["example"].two.recorder.of(Notice)
        # In bfloat16 where the machine can.
        planned = [n.message for n in notices if " in 2 processes in " in n.message]
        assert [message.endswith(", 3 steps") for message in planned] == [True]


class TestResume:
    @pytest.mark.parametrize("step", [4, 6, pytest.param(1, marks=pytest.mark.heavy)])
    def test_is_exact(self, ran: dict[str, Both], step: int) -> None:
        assert_resumed(ran[f"resumed {step}"].two, ran["whole"].two, step)

    def test_a_checkpoint_holds_the_random_state_of_each(self, ran: dict[str, Both]) -> None:
        folder = ran["whole"].two.request.attempt_dir / "checkpoints" / "4"
        states = [torch.load(folder / f"rng_{rank}.pt")["torch"] for rank in (0, 1)]
        assert not torch.equal(*states)
        assert not (folder / "rng_2.pt").exists()
        manifest = json.loads((folder / "manifest.json").read_text())
        assert {"rng_0.pt", "rng_1.pt"} <= manifest["files"].keys()
