"""DeepSpeed: two processes that update half of the weights each train as one process does.

The package is an extra: `make deepspeed` installs it and runs these tests.
"""

import importlib.util
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from service.contract.failures import FailureCode, StageError
from service.contract.spec.spec import JobSpec
from service.contract.stage.events import Notice
from tests.contract.factories import job_spec
from tests.support.models import save_tiny_bert, save_tiny_gpt2, save_tiny_llama
from tests.training.support.jobs import tiny_model
from tests.training.support.pairs import (
    CHOSEN,
    Both,
    Suite,
    adapted,
    answers,
    assert_equal,
    assert_resumed,
    assert_same_model,
    assert_written_in_the_background,
    conversations,
    texts,
)
from worker.training import build
from worker.training.distributed import deepspeed as zero
from worker.training.distributed.deepspeed import DeepSpeedStrategy
from worker.training.distributed.ranks import Ranks

needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"
)


def deepspeed(**options: Any) -> dict[str, Any]:
    # As small as the models: by themselves they are two billion bytes.
    return {"type": "deepspeed", "reduce_bucket_size": 5000, **options}


def _tiny(suite: Suite) -> None:
    few: dict[str, Any] = {"max_steps": 3}
    suite.tiny("plain", **few, per_device_eval_batch_size=2)
    first = deepspeed(zero_stage=1)
    # 37 rows: the last accumulation of an epoch is a shorter one.
    clipped: dict[str, Any] = {"gradient_accumulation_steps": 3, "max_grad_norm": 0.1}
    suite.tiny("stage 1", **clipped, strategy=first)
    suite.tiny("stage 2", **clipped, optim="adamw_torch_fused")
    suite.tiny("unclipped", **few, max_grad_norm=0.0, optim="sgd", optim_args="momentum=0.9")
    suite.tiny("rmsprop", **few, optim="rmsprop", strategy=first)
    sent = deepspeed(overlap_comm=True, reduce_scatter=False, allgather_bucket_size=4096)
    # AdamW hardly notices a gradient's length: this one does.
    suite.tiny("sent otherwise", **clipped, strategy=sent, optim="sgd", optim_args="momentum=0.9")
    offloaded = deepspeed(offload_optimizer_device="cpu", round_robin_gradients=True)
    suite.tiny("offloaded", **clipped, strategy=offloaded)
    # The first update is far too large, and the second step's gradients are not finite.
    again: dict[str, Any] = {"on_non_finite": "rollback", "rollback_learning_rate_factor": 1e-23}
    suite.tiny("rolled back", max_steps=4, **again, learning_rate=1e20)
    suite.tiny("bf16", **few, bf16=True)
    suite.tiny("checkpointed", **few, gradient_checkpointing=True, label_smoothing_factor=0.1)
    suite.tiny("best", **CHOSEN)
    kept: dict[str, Any] = {
        "gradient_accumulation_steps": 3,
        "save_steps": 1,
        "dropout": 0.1,
        "max_steps": 6,
    }
    for name in RESUMED:
        suite.tiny(name, **kept, strategy=deepspeed(**RESUMED[name]))


RESUMED: dict[str, dict[str, Any]] = {
    "whole": {},
    "whole 1": {"zero_stage": 1},
    "whole offloaded": {"offload_optimizer_device": "cpu"},
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, processes: None) -> dict[str, Both]:
    folder = tmp_path_factory.mktemp("zero")
    suite = Suite(folder, deepspeed())
    _tiny(suite)
    for name in RESUMED:
        suite.resume(f"{name} resumed", name, 4)
    gpt2 = save_tiny_gpt2(folder / "gpt2", dropout=0.0)
    few = {"max_steps": 2}
    suite.task("causal-lm", texts("causal-lm", gpt2), **few)
    bert = save_tiny_bert(folder / "bert", dropout=0.0)
    suite.task("masked-lm", texts("masked-lm", bert), **few)
    lora = {"method": "lora", "target_modules": ["c_attn"]}
    suite.task("lora", adapted(gpt2, **lora), **few, save_steps=1)
    llama = save_tiny_llama(folder / "llama")
    suite.task("chat", conversations(llama, packing="bfd", max_length=64), **few)
    suite.task("preference", answers("preference", llama), **few)
    suite.task("kto", answers("preference", llama, loss_type="kto"), **few)
    return suite.run()


class TestRefusals:
    def test_a_worker_without_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Before anything is loaded."""
        find = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name == "deepspeed" else find(name)
        )
        with pytest.raises(StageError) as caught:
            build.accelerator(spec())
        failure = caught.value.failure
        assert failure.code is FailureCode.INVALID_OPTION
        assert failure.details == {"option": "resources.strategy"}
        assert "pip install 'finetune-service[deepspeed]'" in failure.message

    def test_weights_that_are_not_float32(self) -> None:
        with pytest.raises(StageError, match="the model's weights are bfloat16") as caught:
            DeepSpeedStrategy(
                Accelerator(cpu=True), tiny_model().bfloat16(), _no_optimizer, spec(), Ranks()
            )
        assert caught.value.failure.details == {"option": "model.dtype"}


def test_configuration() -> None:
    given = zero.configuration(spec(zero_stage=1, offload_optimizer_device="cpu"))
    section = given.pop("zero_optimization")
    assert section.pop("offload_optimizer") == {"device": "cpu"}
    assert section == {
        "stage": 1,
        "reduce_bucket_size": 5000,
        "allgather_bucket_size": 500_000_000,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "round_robin_gradients": False,
    }
    assert given == {
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": 2,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def spec(**options: Any) -> JobSpec:
    return job_spec(
        training={"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2},
        resources={"gpus": 0, "num_processes": 2, "strategy": deepspeed(**options)},
    )


def _no_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    raise AssertionError("it is refused before")


def _held(both: Both) -> dict[str, int]:
    notices = both.two.recorder.of(Notice)
    return next(each.data for each in notices if each.message.startswith("DeepSpeed: "))


@needs_deepspeed
class TestSameAsOne:
    @pytest.mark.parametrize(
        "name",
        [
            *("plain", "stage 1", "stage 2", "unclipped", "rmsprop", "sent otherwise"),
            *("offloaded", "checkpointed", "best", "causal-lm", "masked-lm", "lora"),
            *("chat", "preference", "kto"),
        ],
    )
    def test_losses_and_metrics(self, ran: dict[str, Both], name: str) -> None:
        assert_equal(ran[name])
        one, two = (each.recorder.train_values("grad_norm") for each in _both(ran[name]))
        # DeepSpeed sums squares up in float64. Of a million numbers torch's float32 is 3e-5 off.
        assert two == pytest.approx(one, rel=1e-4)

    def test_each_process_evaluates_every_other_batch(self, ran: dict[str, Both]) -> None:
        """Five rows to validate on in threes, and three to predict."""
        both = ran["plain"]
        assert both.one.evaluated == [0, 1, 2, 0, 1, 2, 0, 1]
        assert both.two.evaluated == [0, 2, 0, 2, 0]
        baseline = both.one.result.baseline
        assert {name: both.two.result.baseline[name] for name in baseline} == baseline

    def test_bf16(self, ran: dict[str, Both]) -> None:
        """Autocast over float32 weights: sums are rounded in another order."""
        assert_equal(ran["bf16"], rel=1e-3)
        assert ran["bf16"].two.losses != pytest.approx(ran["plain"].two.losses, rel=1e-6)

    def test_clipping_matters(self, ran: dict[str, Both]) -> None:
        norms = ran["stage 2"].two.recorder.train_values("grad_norm")
        assert min(norms.values()) > 0.1

    def test_numbers_that_are_not_finite_are_rolled_back(self, ran: dict[str, Both]) -> None:
        assert_equal(ran["rolled back"])
        for each in _both(ran["rolled back"]):
            messages = [n.message for n in each.recorder.of(Notice) if "rollback 1 of" in n.message]
            assert len(messages) == 1
            assert "was not finite at step 2" in messages[0]

    def test_the_same_model_is_chosen(self, ran: dict[str, Both]) -> None:
        one, two = (each.result for each in _both(ran["best"]))
        assert (two.best_step, two.steps) == (one.best_step, one.steps)

    def test_the_finished_model(self, ran: dict[str, Both]) -> None:
        assert_same_model(ran["causal-lm"])


@needs_deepspeed
class TestSplit:
    @pytest.mark.parametrize(("name", "stage"), [("plain", 2), ("stage 1", 1), ("lora", 2)])
    def test_each_process_updates_half(self, ran: dict[str, Both], name: str, stage: int) -> None:
        held = _held(ran[name])
        assert held["zero_stage"] == stage
        assert held["own_weights"] == pytest.approx(held["weights"] / 2, rel=0.01)


@needs_deepspeed
class TestResume:
    @pytest.mark.parametrize("name", RESUMED)
    def test_is_exact(self, ran: dict[str, Both], name: str) -> None:
        assert_resumed(ran[f"{name} resumed"].two, ran[name].two, 4)

    def test_checkpoints_are_written_in_the_background(self, ran: dict[str, Both]) -> None:
        assert_written_in_the_background(ran["whole"].two)

    @pytest.mark.parametrize(("name", "step"), [("whole", "4"), ("lora", "2")])
    def test_a_checkpoint_is_that_of_one_process(
        self, ran: dict[str, Both], name: str, step: str
    ) -> None:
        """Of the same names and shapes; where nothing is drawn at random, of the same numbers."""
        folders = [each.request.attempt_dir / "checkpoints" / step for each in _both(ran[name])]
        one, two = (torch.load(folder / "optimizer.pt") for folder in folders)
        assert [g["params"] for g in two["param_groups"]] == [
            g["params"] for g in one["param_groups"]
        ]
        assert two["state"].keys() == one["state"].keys()
        for index, values in one["state"].items():
            assert two["state"][index].keys() == values.keys()
            for key, value in values.items():
                assert two["state"][index][key].shape == value.shape
                if name == "lora":
                    torch.testing.assert_close(two["state"][index][key], value)
        weights = [load_file(folder / "model.safetensors") for folder in folders]
        shapes = [{name: v.shape for name, v in each.items()} for each in weights]
        assert shapes[0] == shapes[1]


def _both(pair: Both) -> tuple[Any, Any]:
    return pair.one, pair.two
