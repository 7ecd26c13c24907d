"""What the runner does with trials that fail, with workers that train nothing."""

import math

import pytest
from sqlalchemy import select, update

from service.contract.failures import Failure, FailureCode
from service.contract.states import Stage
from service.store.database import db_now
from service.store.jobs.claims import Claim
from service.store.tables.searches import SearchRow
from tests.searches.conftest import Bench
from tests.searches.simulated_worker import missing_column
from tests.support.store.job_rows import put


class TestFailures:
    def test_a_failed_trial_is_skipped(self, bench: Bench) -> None:
        bench.worker.fails = _high_rates_fail
        search_id = bench.submit(max_trials=8)
        row = bench.run(search_id)
        failed = [trial for trial in bench.trials(search_id) if trial.state == "failed"]
        assert row.state == "succeeded"
        assert 0 < len(failed) < 8
        assert {trial.reason for trial in failed} == {"The loss is NaN."}
        assert {(trial.failure or {})["code"] for trial in failed} == {"non_finite_loss"}

    def test_or_ends_the_search(self, bench: Bench) -> None:
        bench.worker.fails = _high_rates_fail
        search_id = bench.submit(max_trials=8, on_failure="stop")
        row = bench.run(search_id)
        assert row.state == "failed"
        assert row.failure is not None
        assert row.failure["code"] == "non_finite_loss"
        assert "`on_failure` is `stop`: The loss is NaN." in row.failure["message"]
        assert bench.trials(search_id)[-1].state == "failed"

    def test_a_job_that_failed_without_a_failure(self, bench: Bench) -> None:
        search_id = bench.submit(on_failure="stop")
        bench.runner.step()
        put(bench.database, bench.jobs()[0].id, state="failed", failure=None)
        row = bench.run(search_id)
        assert (row.state, bench.trials(search_id)[0].reason) == ("failed", "its job failed")
        assert row.failure == {
            "code": "invalid_option",
            "message": "Trial 0 failed, and `on_failure` is `stop`: its job failed",
            "action": "See why with `finetune search trials`, change the spec, and submit it "
            "again.",
            "details": {},
        }

    def test_data_that_no_trial_can_use_is_reported_once(self, bench: Bench) -> None:
        bench.worker.fails = missing_column
        search_id = bench.submit(max_trials=100)
        row = bench.run(search_id)
        assert (row.state, row.made) == ("failed", 1)
        assert row.failure is not None
        assert row.failure["message"] == (
            "No trial can be prepared. Trial 0: The data has no column `context`."
        )
        assert row.failure["action"].startswith("Map the columns")

    @pytest.mark.parametrize("forgetful", [False, True])
    def test_nor_is_the_same_failure_of_all_reported_a_hundred_times(
        self, bench: Bench, forgetful: bool
    ) -> None:
        bench.worker.fails = _out_of_memory
        search_id = bench.submit(max_trials=100)
        row = bench.run(search_id, forgetful=forgetful)
        assert (row.state, row.made) == ("failed", 3)
        assert row.failure is not None
        assert row.failure["message"] == (
            "The first 3 trials failed the same way. Trial 2: No memory."
        )

    def test_different_failures_end_nothing(self, bench: Bench) -> None:
        codes = (FailureCode.OUT_OF_MEMORY, FailureCode.NON_FINITE_LOSS)

        def fails(claim: Claim) -> Failure | None:
            if claim.stage is not Stage.TRAIN:
                return None
            return Failure.from_code(codes[len(bench.worker.started) // 2 % 2], "It is so.")

        bench.worker.fails = fails
        search_id = bench.submit(max_trials=5)
        row = bench.run(search_id)
        assert (row.state, row.made, row.best) == ("failed", 5, [])
        found = {(trial.failure or {})["code"] for trial in bench.trials(search_id)}
        assert found == set(codes)
        assert (row.failure or {})["code"] == "invalid_option"
        assert (row.failure or {})["message"] == "None of the 5 trials has finished; 5 failed."
        assert f"`finetune search trials {search_id}`" in (row.failure or {})["action"]

    def test_a_metric_that_is_never_reported(self, bench: Bench) -> None:
        bench.worker.metric = "eval_loss"
        search_id = bench.submit(max_trials=100)
        row = bench.run(search_id)
        assert (row.state, row.made) == ("failed", 3)
        assert "`eval_f1` was not reported" in (row.failure or {})["message"]
        assert (row.failure or {})["action"].startswith(
            "See what it reported with `finetune logs job-"
        )

    def test_a_metric_that_is_not_a_number(self, bench: Bench) -> None:
        bench.worker.score = lambda _spec, _step: math.nan
        search_id = bench.submit(max_trials=100)
        bench.run(search_id)
        assert bench.trials(search_id)[0].reason == "`eval_f1` is not a number at its end."

    def test_values_that_the_spec_refuses_together_are_a_failed_trial(self, bench: Bench) -> None:
        space = {"training.bf16": [False, True], "training.fp16": [False, True]}
        search_id = bench.submit(space=space, sampler="grid", template_trial=False, max_trials=4)
        row = bench.run(search_id)
        refused = [trial for trial in bench.trials(search_id) if trial.job_id is None]
        assert row.state == "succeeded"
        assert [trial.values for trial in refused] == [
            {"training.bf16": True, "training.fp16": True}
        ]
        assert refused[0].reason == (
            "The spec refuses these values together: training.bf16: `bf16` and `fp16` exclude each "
            "other: give one of them"
        )

    def test_so_are_values_whose_trials_could_not_be_compared(self, bench: Bench) -> None:
        space = {"training.eval_strategy": ["steps", "no"]}
        search_id = bench.submit(
            space=space, sampler="grid", pruner={"name": "median"}, max_trials=2
        )
        bench.run(search_id)
        states = {
            trial.values["training.eval_strategy"]: (trial.state, trial.job_id is None)
            for trial in bench.trials(search_id)
        }
        assert states == {"steps": ("complete", False), "no": ("failed", True)}

    def test_one_whose_trials_are_all_refused_ends(self, bench: Bench) -> None:
        space = {"training.bf16": [True], "training.fp16": [True], "training.seed": [1, 2, 3]}
        for search_id in (
            bench.submit(space=space, max_trials=100_000),
            bench.submit(space=space, max_trials=100_000, on_failure="stop"),
        ):
            row = bench.run(search_id)
            assert (row.state, bench.jobs()) == ("failed", [])
            assert row.made < 20
            assert "`bf16` and `fp16` exclude each other" in (row.failure or {})["message"]

    def test_one_bug_does_not_stop_other_searches(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        faulty = bench.submit()
        with bench.database.write() as session:
            session.execute(update(SearchRow).values(spec={"no": "search"}))
            now = session.scalar(select(db_now()))
        bench.runner.step()
        assert now is not None
        assert (bench.row(faulty).look_at - now).total_seconds() >= 60
        healthy = bench.submit()
        bench.run(healthy)
        row = bench.row(faulty)
        assert (row.state, (row.waiting or {})["code"]) == ("queued", "internal")
        assert (row.waiting or {})["message"].startswith("ValidationError: ")


def _high_rates_fail(claim: Claim) -> Failure | None:
    if claim.stage is Stage.TRAIN and claim.spec.training.learning_rate > 2e-4:
        return Failure.from_code(FailureCode.NON_FINITE_LOSS, "The loss is NaN.")
    return None


def _out_of_memory(claim: Claim) -> Failure | None:
    if claim.stage is Stage.TRAIN:
        return Failure.from_code(FailureCode.OUT_OF_MEMORY, "No memory.")
    return None
