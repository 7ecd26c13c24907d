"""worker.stages.train.stage: what the stage hands on."""

import hashlib
import os
import signal
from collections.abc import Callable

import pytest
import torch
import transformers

from service.contract.stage.events import (
    ArtifactWritten,
    CheckpointSaved,
    Failed,
    Finished,
    Metric,
    PhaseChanged,
    Progress,
)
from service.contract.states import Phase
from tests.stages.support import Forks
from tests.training.support.jobs import Job, Recorder, rows, run
from worker.stages.base import EXIT_STOPPED


def phases(recorder: Recorder) -> list[Phase]:
    return [event.phase for event in recorder.of(PhaseChanged)]


class TestResult:
    def test_model_metrics_and_files(self, make_job: Callable[..., Job]) -> None:
        job = make_job(
            max_steps=5,
            per_device_train_batch_size=4,
            eval_strategy="steps",
            eval_steps=2,
            save_strategy="no",
            validation=rows(6, seed=5),
            test=rows(4, seed=6),
        )
        result, recorder = run(job.request())
        assert (result.steps, result.epochs, result.best_step) == (5, 0.5, None)
        assert list(recorder.evaluations()) == [0, 2, 4, 5]
        assert result.baseline == recorder.evaluations()[0]
        evaluated = {k: v for k, v in result.metrics.items() if k in recorder.evaluations()[5]}
        assert evaluated == recorder.evaluations()[5]
        speed = ("runtime", "samples", "samples_per_second", "steps_per_second")
        assert set(result.metrics) - set(evaluated) == {
            *(f"{split}_{name}" for split in ("eval", "test") for name in speed),
            "test_loss",
            "test_accuracy",
            "train_samples",
            "train_loss",
            "train_runtime",
            "train_samples_per_second",
            "train_tokens_per_second",
            "train_steps_per_second",
            "train_peak_memory_bytes",
            "total_flos",
        }
        assert result.samples[0].keys() == {"right"}
        artifacts = {event.name: event for event in recorder.of(ArtifactWritten)}
        for artifact in artifacts.values():
            content = (job.workspace / artifact.path).read_bytes()
            assert artifact.bytes == len(content)
            assert artifact.sha256 == hashlib.sha256(content).hexdigest()
        assert {"model/model.safetensors", "model/config.json", "model/tokenizer.json"} <= set(
            artifacts
        )
        assert {"validation.json", "test.json"} <= set(artifacts)
        assert result.weights_sha256 == artifacts["model/model.safetensors"].sha256
        assert phases(recorder)[:3] == [Phase.LOADING, Phase.BASELINE, Phase.TRAINING]
        assert phases(recorder)[-2:] == [Phase.SAVING, Phase.PREDICTING]

    def test_the_model_loads_again(self, make_job: Callable[..., Job]) -> None:
        job = make_job(max_steps=2, save_strategy="steps")
        result, _ = run(job.request())
        output = job.workspace / str(result.output_dir)
        model = transformers.AutoModelForCausalLM.from_pretrained(output)
        given, saved = map(
            transformers.AutoTokenizer.from_pretrained, (job.home / "tokenizer", output)
        )
        assert saved.get_vocab() == given.get_vocab()
        kept = job.checkpoint(2) / "model.safetensors"
        from safetensors.torch import load_file

        for name, value in load_file(kept).items():
            assert torch.equal(model.state_dict()[name], value)

    def test_without_validation_there_is_no_baseline(self, make_job: Callable[..., Job]) -> None:
        result, recorder = run(make_job(max_steps=1).request())
        assert result.baseline == {}
        assert not any(name.startswith("eval_") for name in result.metrics)
        assert Phase.BASELINE not in phases(recorder)

    def test_eval_on_start_may_be_off(self, make_job: Callable[..., Job]) -> None:
        options = {"max_steps": 2, "validation": rows(4), "eval_strategy": "epoch"}
        whole, _ = run(make_job(**options).request())
        result, recorder = run(make_job(**options, eval_on_start=False).request())
        assert result.baseline == {}
        assert list(recorder.evaluations()) == [2]
        assert Phase.BASELINE not in phases(recorder)
        assert result.weights_sha256 == whole.weights_sha256

    def test_validation_without_a_strategy_is_evaluated_at_the_end(
        self, make_job: Callable[..., Job]
    ) -> None:
        result, recorder = run(make_job(max_steps=2, validation=rows(4)).request())
        assert list(recorder.evaluations()) == [0, 2]
        assert result.metrics["eval_loss"] == recorder.evaluations()[2]["eval_loss"]

    def test_a_resumed_run_takes_the_baseline_from_its_checkpoint(
        self, make_job: Callable[..., Job]
    ) -> None:
        job = make_job(max_steps=4, save_steps=2, validation=rows(4))
        whole, _ = run(job.request(1))
        resumed, recorder = run(job.request(2, resume_from=job.checkpoint(2)))
        assert resumed.baseline == whole.baseline != {}
        assert list(recorder.evaluations()) == [4]
        assert phases(recorder)[:2] == [Phase.LOADING, Phase.TRAINING]
        assert recorder.of(Progress)[0].step >= 2

    def test_begun_again_without_a_checkpoint_it_reports_the_same_numbers(
        self, make_job: Callable[..., Job]
    ) -> None:
        """SQL keeps the first of them: the training did not return to an earlier step."""
        job = make_job(max_steps=2, validation=rows(4))
        for attempt in (1, 2):
            _, recorder = run(job.request(attempt))
            metrics = [(event.kind, event.step, event.is_remade) for event in recorder.of(Metric)]
            assert metrics[0] == ("eval", 0, False)
            assert not any(is_remade for _, _, is_remade in metrics)


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory, processes: None) -> Forks:
    return Forks("tests.training.support.tiny_stage", tmp_path_factory.mktemp("forks"))


class TestStop:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
    def test_a_signal_ends_it_and_leaves_no_half_checkpoint(
        self, make_job: Callable[..., Job], forks: Forks, number: signal.Signals
    ) -> None:
        """SIGTERM at once, SIGUSR1 after a checkpoint of the step in hand."""
        job = make_job(max_steps=100_000, save_steps=5000, logging_steps=10)
        request = job.request()
        path = request.attempt_dir / "request.json"
        path.write_text(request.model_dump_json())
        stage = forks.start(path)
        while not any(isinstance(event, Metric) for event in stage.read(60)):
            assert not stage.at_end
        os.kill(stage.pid, number)
        ended = forks.wait(stage, path)
        assert ended.status == EXIT_STOPPED
        assert not [event for event in ended.events if isinstance(event, Finished | Failed)]
        kept = list((request.attempt_dir / "checkpoints").glob("*"))
        if number is signal.SIGTERM:
            assert kept == []
        else:
            announced = ended.events[-1]
            assert isinstance(announced, CheckpointSaved)
            assert [job.workspace / announced.path] == kept


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_the_extreme_seeds(make_job: Callable[..., Job], seed: int) -> None:
    result, _ = run(make_job(max_steps=1, seed=seed, save_strategy="no").request())
    assert result.steps == 1
