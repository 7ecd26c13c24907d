"""What the training checks answer to trainings that end as they should, and as they should not."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from service.contract.failures import FailureCode
from tests.doctor.endings import Options, cpu, failed, finished, gpu, in_turn, script
from worker.doctor.check import Finding
from worker.doctor.checks import (
    communication,
    determinism,
    job_metrics,
    optimizers,
    out_of_memory,
    overflow,
    packing,
    quantization,
    ranks,
    speed,
    tasks,
)
from worker.doctor.jobs import Ended, StageFailedError

OTHER = FailureCode.INTERNAL
LEFT_OUT: Any = [
    {"before": {"weights": 1.0, "learning_rate": 4.0, "scale": 8.0},
     "after": {"weights": 2.0, "learning_rate": 3.0, "scale": 8.0}},
    {"before": {"weights": 2.0, "learning_rate": 3.0, "scale": 8.0},
     "after": {"weights": 2.0, "learning_rate": 3.0, "scale": 4.0}},
    {"before": {"weights": 2.0, "learning_rate": 3.0, "scale": 4.0},
     "after": {"weights": 3.0, "learning_rate": 2.0, "scale": 4.0}},
]  # fmt: skip
CPU: Any = {"cpu_percent": 50.0, "memory_rss_bytes": 1e8}


def assert_failed(finding: Finding, reason: str) -> None:
    assert finding.status == "failed"
    assert reason in finding.reason
    assert finding.remedy


class TestEnded:
    def test_a_stage_that_failed_has_no_numbers(self, tmp_path: Path) -> None:
        with pytest.raises(StageFailedError, match=r"internal: it was internal"):
            assert failed(tmp_path, OTHER).losses

    def test_a_stage_without_a_result_is_described_by_its_log(self, tmp_path: Path) -> None:
        ending = failed(tmp_path, log="Segmentation fault").ending
        assert ending == (
            "the stage ended with status -9 and without a result. Its log: Segmentation fault"
        )


class TestQuantization:
    def test_near_the_plain_losses(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        ends = in_turn(finished(tmp_path, [5.0, 4.0]), finished(tmp_path, [5.1, 4.2]))
        script(monkeypatch, ends)
        found = quantization.four_bits(gpu(tmp_path))
        assert found.status == "ok"
        assert found.data == {"losses": [5.1, 4.2], "losses_unquantized": [5.0, 4.0]}

    @pytest.mark.parametrize("losses", [[6.0, 4.2], [5.0, 5.0], [5.0, math.nan]])
    def test_other_losses(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: list[float]
    ) -> None:
        script(monkeypatch, in_turn(finished(tmp_path, [5.0, 4.0]), finished(tmp_path, losses)))
        assert_failed(quantization.four_bits(gpu(tmp_path)), str(losses))

    def test_a_failure(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        script(monkeypatch, in_turn(finished(tmp_path), failed(tmp_path, OTHER)))
        found = quantization.eight_bits(cpu(tmp_path))
        assert_failed(found, "it was internal")
        assert found.summary == "LoRA on 8-bit weights failed"


class TestOptimizers:
    def test_near_the_plain_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def end(options: Options) -> Ended:
            return finished(tmp_path, [5.0, 4.0 if options["optim"] == "adamw_torch" else 4.1])

        script(monkeypatch, end)
        found = optimizers.torchao(cpu(tmp_path))
        assert found.status == "ok"
        losses: Any = found.data["losses"]
        assert list(losses) == ["adamw_torch", "adamw_torch_8bit", "adamw_torch_4bit"]

    @pytest.mark.parametrize("losses", [[4.9, 4.0], [5.0, 3.0]])
    def test_another_training(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: list[float]
    ) -> None:
        script(monkeypatch, in_turn(finished(tmp_path, [5.0, 4.0]), finished(tmp_path, losses)))
        assert_failed(optimizers.paged(gpu(tmp_path)), str(losses))

    def test_a_failure_names_the_optimizer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script(monkeypatch, in_turn(finished(tmp_path), failed(tmp_path, OTHER)))
        found = optimizers.torchao(cpu(tmp_path))
        assert_failed(found, "it was internal")
        assert found.summary == "`optim: adamw_torch_8bit` fails"


class TestTasks:
    @pytest.mark.parametrize("losses", [[2.0, 2.0], [2.0, math.nan], [math.inf, 1.0]])
    def test_losses_that_do_not_fall(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: list[float]
    ) -> None:
        script(monkeypatch, lambda _options: finished(tmp_path, losses))
        assert_failed(tasks.tasks(cpu(tmp_path)), str(losses))

    def test_the_task_that_fails_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def end(options: Options) -> Ended:
            is_bad = options["body"]["task"] == "masked-lm"
            return failed(tmp_path, OTHER) if is_bad else finished(tmp_path)

        script(monkeypatch, end)
        found = tasks.tasks(cpu(tmp_path))
        assert_failed(found, "it was internal")
        assert found.summary == "a tiny job of masked-lm failed"

    def test_a_gpu_that_computes_another_first_loss(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def end(options: Options) -> Ended:
            on_cpu = options.get("resources") == {"gpus": 0}
            return finished(tmp_path, [2.0 if on_cpu else 2.1, 1.0])

        script(monkeypatch, end)
        assert_failed(tasks.tasks(gpu(tmp_path)), "is 2.1 on the GPU and 2.0 on the CPU")

    def test_steps_that_wait_for_the_gpu(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "syncs.json").write_text(json.dumps({"masking_utils.py:7": 3, "loop.py:1": 1}))
        script(monkeypatch, lambda _options: finished(tmp_path, [2.0, 1.5, 1.2, 1.0]))
        found = tasks.tasks(gpu(tmp_path))
        assert found.status == "warning"
        syncs: Any = found.data["syncs"]
        assert syncs["causal-lm"] == {"masking_utils.py:7": 1.0, "loop.py:1": 0.33}


class TestOverflow:
    def find(self, folder: Path, monkeypatch: pytest.MonkeyPatch, steps: Any) -> Finding:
        (folder / "overflow.json").write_text(json.dumps(steps))
        script(monkeypatch, lambda _options: finished(folder))
        return overflow.overflow(cpu(folder))

    def test_left_out(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.find(tmp_path, monkeypatch, LEFT_OUT).status == "ok"

    @pytest.mark.parametrize(
        ("step", "what", "value", "reason"),
        [
            (1, "weights", 2.5, "the step with the overflow changed the weights"),
            (1, "learning_rate", 2.0, "the step with the overflow changed the learning rate"),
            (1, "scale", 8.0, "the loss scale went from 8.0 to 8.0"),
            (0, "weights", 1.0, "step 1 did not change the weights"),
            (2, "learning_rate", 3.0, "step 3 did not change the learning rate"),
        ],
    )
    def test_not_left_out(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        step: int,
        what: str,
        value: float,
        reason: str,
    ) -> None:
        steps = json.loads(json.dumps(LEFT_OUT))
        steps[step]["after"][what] = value
        assert_failed(self.find(tmp_path, monkeypatch, steps), reason)

    def test_no_second_step(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert_failed(self.find(tmp_path, monkeypatch, LEFT_OUT[:1]), "only 1 steps")


class TestOutOfMemory:
    def test_another_cause(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        script(monkeypatch, lambda _options: failed(tmp_path, FailureCode.DEVICE_ERROR))
        assert_failed(out_of_memory.training(cpu(tmp_path)), "device_error")

    def test_a_kill(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        script(monkeypatch, lambda _options: failed(tmp_path))
        assert_failed(out_of_memory.training(cpu(tmp_path)), "status -9")

    def test_halving_that_trains_otherwise(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "forced").touch()
        ends = failed(tmp_path, FailureCode.OUT_OF_MEMORY), finished(tmp_path, [2.0, 1.0])
        script(monkeypatch, in_turn(*ends, finished(tmp_path, [2.0, 1.5])))
        assert_failed(out_of_memory.training(cpu(tmp_path)), "[2.0, 1.0]")

    def test_memory_that_did_not_run_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ends = failed(tmp_path, FailureCode.OUT_OF_MEMORY), finished(tmp_path), finished(tmp_path)
        script(monkeypatch, in_turn(*ends))
        assert out_of_memory.training(cpu(tmp_path)).status == "failed"

    def test_an_evaluation_with_other_numbers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "forced").touch()
        ends = finished(tmp_path, eval_loss=1.0), finished(tmp_path, eval_loss=1.1)
        script(monkeypatch, in_turn(*ends))
        assert_failed(out_of_memory.evaluation(cpu(tmp_path)), "loss 1.1 in halved batches")

    def test_an_evaluation_that_is_not_halved(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ends = finished(tmp_path, eval_loss=1.0), failed(tmp_path, FailureCode.OUT_OF_MEMORY)
        script(monkeypatch, in_turn(*ends))
        assert_failed(out_of_memory.evaluation(cpu(tmp_path)), "out_of_memory")

    def test_a_gpu_that_others_use_is_not_filled(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(out_of_memory, "_others", lambda context: "4711")
        found = out_of_memory.cublas(gpu(tmp_path))
        assert (found.status, found.reason) == ("not_run", "other processes use this GPU: 4711")


class TestDeterminism:
    def find(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, *weights: str, on: Any = cpu
    ) -> Finding:
        ends = (finished(folder, weights=letter * 64) for letter in weights)
        script(monkeypatch, in_turn(*ends))
        return determinism.determinism(on(folder))

    def test_equal(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.find(tmp_path, monkeypatch, *"aaaa", on=gpu)
        assert (found.status, found.data["precision"]) == ("ok", "bf16")

    def test_only_when_asked_for(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.find(tmp_path, monkeypatch, *"abcc")
        assert found.status == "warning"
        assert found.remedy.startswith("Set `training.full_determinism: true`")

    def test_not_even_then(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.find(tmp_path, monkeypatch, *"aaab")
        assert found.summary == "two runs with `full_determinism` end with different weights"
        assert_failed(found, "losses")


class TestPacking:
    def test_other_losses(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        ends = finished(tmp_path, [2.0, 1.5]), finished(tmp_path, [2.0, 1.6])
        script(monkeypatch, in_turn(*ends))
        assert_failed(packing.packing(cpu(tmp_path)), "texts: losses [2.0, 1.5]")

    def test_never_packed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        script(monkeypatch, lambda _options: finished(tmp_path))
        assert packing.packing(cpu(tmp_path)).status == "warning"


class TestCommunication:
    def test_all_reduce_on_this_cpu(self, tmp_path: Path) -> None:
        found = communication.all_reduce(cpu(tmp_path))
        assert (found.status, found.data["backend"]) == ("ok", "gloo")
        speeds: Any = found.data["bytes_per_second"]
        assert list(speeds) == ["1 KiB", "1 MiB", "16 MiB"]

    def test_a_process_that_fails(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(communication, "_rank", _break)
        found = communication.all_reduce(cpu(tmp_path))
        assert_failed(found, "unhandled system error")
        assert found.remedy.startswith("Set NCCL_DEBUG=INFO")


def _break(*_: Any) -> None:
    raise RuntimeError("NCCL error: unhandled system error")


class TestRanks:
    @pytest.mark.parametrize("check", [ranks.data_parallel, ranks.sharded])
    def test_other_losses(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: Any
    ) -> None:
        ends = finished(tmp_path, [2.0, 1.5]), finished(tmp_path, [2.0, 1.6])
        script(monkeypatch, in_turn(*ends))
        assert_failed(check(cpu(tmp_path)), "[2.0, 1.6]; with one process [2.0, 1.5]")

    def test_they_are_two_with_half_of_each_batch(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[Options] = []
        script(monkeypatch, lambda options: asked.append(options) or finished(tmp_path))
        assert ranks.sharded(gpu(tmp_path, 2)).status == "ok"
        assert [each["per_device_train_batch_size"] for each in asked] == [4, 2]
        assert asked[1]["resources"] == {"gpus": 2, "strategy": {"type": "fsdp"}}

    @pytest.mark.parametrize("code", [FailureCode.DEVICE_ERROR, FailureCode.INTERNAL])
    def test_a_killed_rank_with_another_cause(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: FailureCode
    ) -> None:
        script(monkeypatch, lambda _options: failed(tmp_path, code))
        assert_failed(ranks.killed(cpu(tmp_path)), code)

    def test_a_killed_rank_that_nobody_misses(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script(monkeypatch, lambda _options: finished(tmp_path))
        assert_failed(ranks.killed(cpu(tmp_path)), "the stage finished")

    def test_an_nccl_error_that_passes_for_a_lost_worker(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script(monkeypatch, lambda _options: failed(tmp_path, FailureCode.WORKER_LOST))
        assert_failed(ranks.nccl_error(gpu(tmp_path, 2)), "worker_lost")
        script(monkeypatch, lambda _options: failed(tmp_path, FailureCode.GPU_USED_TWICE))
        assert ranks.nccl_error(gpu(tmp_path, 2)).status == "ok"


class TestSpeed:
    @pytest.mark.parametrize(
        ("ours", "context", "status"), [(90, gpu, "ok"), (70, gpu, "warning"), (70, cpu, "ok")]
    )
    def test_against_trainer(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        ours: int,
        context: Any,
        status: str,
    ) -> None:
        def end(options: Options) -> Ended:
            theirs = options["prelude"] is speed._train_by_trainer
            rate = {"tokens_per_second": 100 if theirs else ours, "peak_memory_bytes": 1}
            (tmp_path / "speed.json").write_text(json.dumps(rate))
            return failed(tmp_path) if theirs else finished(tmp_path, train_mfu=0.25)

        script(monkeypatch, end)
        monkeypatch.setattr("worker.doctor.tiny.model", lambda *_, **__: tmp_path)
        monkeypatch.setattr(
            "worker.doctor.jobs.Jobs.body", lambda *_, **__: {"dataset": {"validation": 1}}
        )
        found = speed.speed(context(tmp_path))
        assert found.status == status
        assert found.summary == f"{ours} tokens/s, 0.{ours} times Trainer's, MFU 25.0%"


class TestJobMetrics:
    @pytest.mark.parametrize(
        ("values", "idle", "reason"),
        [
            (CPU, [], ""),
            ({"memory_rss_bytes": 1e8}, [], "shows no CPU"),
            ({**CPU, "cpu_percent": 0.0}, [], "shows no CPU"),
            (CPU, [5], "the job has 1 GPUs, and the metrics show 0"),
            ({**CPU, "gpu_0_memory_used_bytes": 5e8}, [], "has 0 GPUs, and the metrics show 1"),
            ({**CPU, "gpu_1_memory_used_bytes": 5e8}, [5], "has 1 GPUs"),
            (
                {**CPU, "gpu_0_memory_used_bytes": 5e8},
                [499_000_000],
                "grew by only 1,000,000 bytes",
            ),
            ({**CPU, "gpu_0_memory_used_bytes": 5e8}, [5], ""),
        ],
    )
    def test_whose_they_are(self, values: Any, idle: list[int], reason: str) -> None:
        problem = job_metrics._problem(values, idle)
        assert reason in problem
        assert bool(problem) == bool(reason)
