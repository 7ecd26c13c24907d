"""The runner with workers that train nothing."""

from typing import Any

import pytest
from sqlalchemy import delete, update

from service.contract.failures import Failure, FailureCode
from service.contract.routing import Message
from service.contract.spec.spec import JobSpec
from service.contract.states import JobState
from service.errors import SearchEndedError, SearchStateError
from service.searches import commands
from service.store.database import db_now
from service.store.jobs.claims import Claim
from service.store.scope import EVERYTHING
from service.store.tables.jobs import JobRow
from service.store.tables.projects import ProjectRow
from service.store.tables.searches import SearchRow
from tests.searches.conftest import Bench
from tests.support.store.databases import on_both
from tests.support.store.job_rows import get, put

# Of each, tests/studies compares the trials after a crash before every one of them.
SELDOM = ("random", "qmc", "nsgaii")
SAMPLERS = ["tpe", *(pytest.param(name, marks=pytest.mark.heavy) for name in SELDOM)]


class TestTrials:
    def test_runs_one_after_the_other(self, bench: Bench) -> None:
        search_id = bench.submit()
        row = bench.run(search_id)
        trials = bench.trials(search_id)
        assert row.state == "succeeded"
        assert [trial.state for trial in trials] == ["complete"] * 6
        assert [trial.origin for trial in trials] == ["template", *["sampled"] * 5]
        assert trials[0].values == {"training.learning_rate": 5e-5}
        scores = [trial.scores[0] for trial in trials if trial.scores]
        assert row.best == [scores.index(max(scores))]
        assert row.best_scores == [[max(scores)]]
        assert row.counts == {"complete": 6}
        assert {(trial.score_step, trial.is_held) for trial in trials} == {(30, False)}
        assert [trial.end_number for trial in trials] == [1, 2, 3, 4, 5, 6]
        ended = [trial.ended_at for trial in trials if trial.ended_at is not None]
        assert len(ended) == 6
        assert ended == sorted(ended)

    def test_workers_are_woken(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        sent: list[Message] = []
        monkeypatch.setattr(bench.dispatcher, "enqueue_soon", sent.append)
        bench.submit()
        bench.runner.step()
        assert [message.id for message in sent] == [job.id for job in bench.jobs()] != []

    def test_are_ordinary_jobs(self, bench: Bench) -> None:
        hub = {"model_id": "org/best"}
        tracking = {"register_as": "best", "register_alias": "champion", "run_name": "rates"}
        spec = {"hub": hub, "tracking": tracking, "priority": 7}
        search_id = bench.submit_template(spec, max_trials=2)
        bench.run(search_id)
        for trial in bench.trials(search_id):
            assert trial.job_id is not None
            job = get(bench.database, trial.job_id)
            parsed = JobSpec.accepted(job.spec)
            assert (job.search_id, job.trial, job.state) == (search_id, trial.number, "succeeded")
            assert parsed.training.learning_rate == trial.values["training.learning_rate"]
            assert parsed.hub is None
            assert parsed.tracking == type(parsed.tracking)()
            assert (parsed.name, parsed.priority) == (f"rates trial {trial.number}", 7)

    def test_begin_with_those_that_were_given(self, bench: Bench) -> None:
        enqueue = [{"training.learning_rate": 3e-5}, {"training.learning_rate": 2e-4}]
        search_id = bench.submit(enqueue=enqueue, max_trials=4, template_trial=False)
        bench.run(search_id)
        trials = bench.trials(search_id)
        assert [trial.origin for trial in trials] == ["enqueued"] * 2 + ["sampled"] * 2
        assert [trial.values for trial in trials[:2]] == enqueue

    def test_the_template_is_none_outside_of_the_space(self, bench: Bench) -> None:
        search_id = bench.submit(space={"training.learning_rate": [1e-4, 2e-4]}, max_trials=1)
        bench.run(search_id)
        assert [trial.origin for trial in bench.trials(search_id)] == ["sampled"]

    def test_a_grid_ends_when_all_was_tried(self, bench: Bench) -> None:
        search_id = bench.submit(
            space={"training.learning_rate": [1e-5, 5e-5, 1e-4]}, sampler="grid", max_trials=50
        )
        row = bench.run(search_id)
        rates = [trial.values["training.learning_rate"] for trial in bench.trials(search_id)]
        assert row.state == "succeeded"
        assert sorted(rates) == [1e-5, 5e-5, 1e-4]

    def test_of_several_objectives_those_are_best_that_no_other_beats(self, bench: Bench) -> None:
        bench.worker.also = {"eval_exact_match": lambda spec, _: spec.training.learning_rate}
        search_id = bench.submit(
            objective=[{"metric": "f1"}, {"metric": "exact_match"}],
            enqueue=[{"training.learning_rate": rate} for rate in (1e-5, 1e-4, 1e-3, 1e-6)],
            template_trial=False,
            max_trials=4,
        )
        row = bench.run(search_id)
        assert row.best == [1, 2]
        assert [scores[1] for scores in row.best_scores] == [1e-4, 1e-3]
        assert bench.reports(search_id) == []

    def test_fields_vary_only_where_their_condition_holds(self, bench: Bench) -> None:
        space = {
            "training.optim": ["adamw_torch", "adafactor"],
            "training.adam_beta2": {
                "low": 0.9,
                "high": 0.999,
                "when": {"training.optim": "adamw_torch"},
            },
        }
        search_id = bench.submit(space=space, max_trials=8)
        bench.run(search_id)
        found = {(t.values["training.optim"], len(t.values)) for t in bench.trials(search_id)}
        assert found == {("adamw_torch", 2), ("adafactor", 1)}


@on_both
class TestParallel:
    def test_no_more_run_than_may(self, bench: Bench) -> None:
        bench.worker.slots = 8
        search_id = bench.submit(max_trials=12, max_parallel=3)
        most = 0
        for _ in range(400):
            bench.turn()
            most = max(most, len(bench.worker.running))
            if bench.row(search_id).ended_at is not None:
                break
        assert most == 3
        assert bench.row(search_id).counts == {"complete": 12}

    def test_at_most_one_waits(self, bench: Bench) -> None:
        search_id = bench.submit(max_trials=12, max_parallel=8)
        for _ in range(60):
            bench.turn()
            assert len(bench.waiting()) <= 1
        assert bench.row(search_id).made > 2

    def test_two_reconcilers_make_each_trial_once(self, bench: Bench) -> None:
        search_id = bench.submit(max_parallel=2)
        other = bench.new_runner()
        for _ in range(200):
            other.step()
            bench.turn()
            other.step()
        row = bench.row(search_id)
        assert (row.state, row.made, len(bench.jobs())) == ("succeeded", 6, 6)


class TestCrashes:
    @pytest.mark.parametrize("sampler", SAMPLERS)
    def test_a_runner_that_remembers_nothing_makes_the_same_trials(
        self, bench: Bench, sampler: str
    ) -> None:
        options = {"n_startup_trials": 4} if sampler == "tpe" else {}
        given: dict[str, Any] = {"sampler": {"name": sampler, "seed": 3, **options}}
        given["max_trials"] = 10
        whole, broken = bench.submit(**given), bench.submit(**given)
        bench.run(whole)
        bench.run(broken, forgetful=True)
        assert [trial.values for trial in bench.trials(broken)] == [
            trial.values for trial in bench.trials(whole)
        ]

    def test_trials_that_the_spec_refused_are_the_same_too(self, bench: Bench) -> None:
        space = {
            "training.bf16": [False, True],
            "training.fp16": [False, True],
            "training.learning_rate": {"low": 1e-5, "high": 1e-3, "log": True},
        }
        sampler = {"name": "tpe", "seed": 3, "n_startup_trials": 4}
        given: dict[str, Any] = {"space": space, "sampler": sampler, "max_trials": 12}
        whole, broken = bench.submit(**given), bench.submit(**given)
        bench.run(whole)
        bench.run(broken, forgetful=True)
        made = [
            [(trial.values, trial.state, trial.reason) for trial in bench.trials(each)]
            for each in (whole, broken)
        ]
        assert made[0] == made[1]
        assert 0 < sum(trial.job_id is None for trial in bench.trials(whole)) < 12

    def test_a_pass_that_could_not_be_written_changes_nothing(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = bench.submit()
        bench.run(whole)
        broken = bench.submit()
        failing = iter([True, False] * 1000)
        insert = "service.searches.write.submissions.insert"
        real = bench.insert

        def sometimes(*args: Any, **options: Any) -> object:
            if next(failing):
                raise RuntimeError("crash")
            return real(*args, **options)

        monkeypatch.setattr(insert, sometimes)
        for _ in range(300):
            bench.turn()
            bench.hurry()
        assert bench.row(broken).state == "succeeded"
        assert [trial.values for trial in bench.trials(broken)] == [
            trial.values for trial in bench.trials(whole)
        ]


class TestLimits:
    def test_stops_without_gain(self, bench: Bench) -> None:
        bench.worker.score = lambda _spec, step: step / 100
        search_id = bench.submit(max_trials=50, stop_after_trials_without_gain=4)
        row = bench.run(search_id)
        assert (row.state, row.made, row.best) == ("succeeded", 5, [0])

    @on_both
    def test_no_trial_begins_after_the_time(self, bench: Bench) -> None:
        search_id = bench.submit(max_trials=50, timeout_seconds=60)
        for _ in range(15):
            bench.turn()
        with bench.database.write() as session:
            session.execute(update(SearchRow).values(started_at=db_now(-61)))
        made = bench.row(search_id).made
        row = bench.run(search_id)
        assert (row.state, row.made) == ("succeeded", made)
        assert row.counts == {"complete": made}

    def test_waits_for_the_projects_quota(self, bench: Bench) -> None:
        with bench.database.write() as session:
            session.execute(update(ProjectRow).values(max_queued_jobs=0))
        search_id = bench.submit()
        bench.turn()
        row = bench.row(search_id)
        assert (row.state, row.made) == ("queued", 0)
        assert (row.waiting or {})["code"] == "quota_exceeded"
        with bench.database.write() as session:
            session.execute(update(ProjectRow).values(max_queued_jobs=1))
        bench.hurry()
        assert bench.run(search_id).state == "succeeded"
        assert bench.row(search_id).waiting is None

    def test_waits_for_what_its_sampler_needs(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def missing(*_args: Any, **_options: Any) -> None:
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

        search_id = bench.submit(sampler="gp")
        monkeypatch.setattr("service.studies.study.Study.ask", missing)
        bench.turn()
        row = bench.row(search_id)
        assert (row.state, (row.waiting or {})["code"]) == ("queued", "sampler_unavailable")
        assert (row.waiting or {})["message"] == (
            "This sampler needs the package 'torch', which the reconciler does not have: start the "
            "reconciler where the worker's packages are, or cancel the search and choose another "
            "`sampler`."
        )
        monkeypatch.undo()
        bench.hurry()
        bench.turn()
        assert bench.row(search_id).state == "running"

    def test_an_archived_project_ends_it(self, bench: Bench) -> None:
        search_id = bench.submit()
        with bench.database.write() as session:
            session.execute(update(ProjectRow).values(archived_at=db_now()))
        bench.turn()
        row = bench.row(search_id)
        assert row.state == "failed"
        assert "archived" in (row.failure or {})["message"]


class TestUser:
    def test_cancels(self, bench: Bench) -> None:
        search_id = bench.submit(max_parallel=2)
        bench.worker.slots = 2
        for _ in range(4):
            bench.turn()
        assert commands.cancel(bench.database, EVERYTHING, search_id) is JobState.CANCELLING
        row = bench.run(search_id)
        assert row.state == "cancelled"
        assert {trial.state for trial in bench.trials(search_id)} <= {"cancelled", "complete"}
        assert {job.state for job in bench.jobs()} <= {"cancelled", "succeeded"}
        with pytest.raises(SearchEndedError):
            commands.cancel(bench.database, EVERYTHING, search_id)

    def test_cancels_one_that_has_not_begun(self, bench: Bench) -> None:
        search_id = bench.submit()
        assert commands.cancel(bench.database, EVERYTHING, search_id) is JobState.CANCELLED
        bench.turn()
        assert bench.jobs() == []

    def test_pauses_and_resumes(self, bench: Bench) -> None:
        whole = bench.submit()
        bench.run(whole)
        search_id = bench.submit()
        for _ in range(4):
            bench.turn()
        assert commands.pause(bench.database, EVERYTHING, search_id) is JobState.PAUSING
        for _ in range(2):
            bench.hurry()
            bench.runner.step()
            assert bench.row(search_id).state == "pausing"  # its job has not stopped yet
        for _ in range(5):
            bench.turn()
        assert bench.row(search_id).state == "paused"
        assert bench.worker.running == {}
        assert [job.state for job in bench.jobs() if job.search_id == search_id] == ["paused"]
        assert commands.resume(bench.database, EVERYTHING, search_id) is JobState.RUNNING
        assert bench.run(search_id).state == "succeeded"
        assert [trial.scores for trial in bench.trials(search_id)] == [
            trial.scores for trial in bench.trials(whole)
        ]

    def test_resumes_before_it_has_paused(self, bench: Bench) -> None:
        search_id = bench.submit()
        for _ in range(4):
            bench.turn()
        commands.pause(bench.database, EVERYTHING, search_id)
        bench.runner.step()
        assert commands.resume(bench.database, EVERYTHING, search_id) is JobState.RUNNING
        assert bench.run(search_id).counts == {"complete": 6}

    def test_extends_one_that_has_ended(self, bench: Bench) -> None:
        whole = bench.submit(max_trials=9)
        bench.run(whole)
        search_id = bench.submit(max_trials=4)
        bench.run(search_id)
        assert commands.extend(bench.database, EVERYTHING, search_id, 9) is JobState.RUNNING
        assert commands.extend(bench.database, EVERYTHING, search_id, 9) is JobState.RUNNING
        with pytest.raises(SearchStateError, match="cannot be made smaller"):
            commands.extend(bench.database, EVERYTHING, search_id, 8)
        assert bench.run(search_id).state == "succeeded"
        assert [trial.values for trial in bench.trials(search_id)] == [
            trial.values for trial in bench.trials(whole)
        ]

    def test_cancels_a_trial(self, bench: Bench) -> None:
        search_id = bench.submit(max_trials=3)
        for _ in range(4):
            bench.turn()
        (job,) = bench.jobs()
        put(bench.database, job.id, state="cancelling")
        row = bench.run(search_id)
        assert row.counts == {"cancelled": 1, "complete": 2}
        assert bench.trials(search_id)[0].reason == "its job was cancelled"

    def test_deletes_a_trials_job(self, bench: Bench) -> None:
        search_id = bench.submit(max_trials=3)
        bench.runner.step()
        with bench.database.write() as session:
            session.execute(delete(JobRow))
        row = bench.run(search_id)
        assert row.counts == {"cancelled": 1, "complete": 2}
        assert bench.trials(search_id)[0].reason == "its job was deleted"

    def test_deletes_the_search_with_its_jobs(self, bench: Bench) -> None:
        search_id = bench.submit(max_trials=2)
        bench.runner.step()
        with pytest.raises(SearchStateError, match="Only an ended search"):
            commands.delete(bench.database, bench.settings, EVERYTHING, search_id)
        bench.run(search_id)
        commands.delete(bench.database, bench.settings, EVERYTHING, search_id)
        assert bench.jobs() == []
        assert bench.trials(search_id) == []


class TestBest:
    def test_is_trained_again_with_more_steps(self, bench: Bench) -> None:
        search_id = bench.submit_template(
            {"hub": {"model_id": "org/best"}},
            best={"action": "refit", "set": {"training.max_steps": 500}},
            max_trials=4,
        )
        row = bench.run(search_id)
        assert row.state == "succeeded"
        assert row.outcome is not None
        job = get(bench.database, row.outcome["job_id"])
        spec = JobSpec.accepted(job.spec)
        best = bench.trials(search_id)[row.best[0]]
        assert (job.search_id, job.trial, job.name) == (search_id, None, "rates refit")
        assert spec.training.max_steps == 500
        assert spec.training.learning_rate == best.values["training.learning_rate"]
        assert spec.hub is not None

    def test_is_published(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        sent: list[Message] = []
        monkeypatch.setattr(bench.dispatcher, "enqueue_soon", sent.append)
        search_id = bench.submit_template(
            {"hub": {"model_id": "org/best"}}, best="publish", max_trials=3
        )
        bench.worker.home = bench.settings.home
        row = bench.run(search_id)
        best = bench.trials(search_id)[row.best[0]]
        assert row.state == "succeeded"
        assert row.outcome == {"action": "publish", "job_id": best.job_id}
        events = bench.events(best.job_id)
        (asked,) = [event.data for event in events if event.type == "publish_requested"]
        assert asked["follow_up"]["hub"]["model_id"] == "org/best"
        assert [message.id for message in sent[3:]] == [best.job_id]  # after three trials

    @pytest.mark.parametrize(
        ("state", "what"), [("cancelled", "is cancelled"), (None, "was deleted")]
    )
    def test_one_whose_job_ends_without_a_reason(
        self, bench: Bench, state: str | None, what: str
    ) -> None:
        search_id = self._refitting(bench)
        job_id = (bench.row(search_id).outcome or {})["job_id"]
        if state is None:
            with bench.database.write() as session:
                session.execute(delete(JobRow).where(JobRow.id == job_id))
        else:
            put(bench.database, job_id, state=state)
        row = bench.run(search_id)
        assert row.state == "failed"
        assert row.failure is not None
        assert row.failure["code"] == "cancelled"
        assert row.failure["message"] == f"The job that was to refit the best trial {what}."
        assert f"`finetune search best {search_id}`" in row.failure["action"]

    def test_is_cancelled_with_the_search(self, bench: Bench) -> None:
        search_id = self._refitting(bench)
        job_id = (bench.row(search_id).outcome or {})["job_id"]
        commands.cancel(bench.database, EVERYTHING, search_id)
        row = bench.run(search_id)
        assert (row.state, row.counts) == ("cancelled", {"complete": 1})
        assert get(bench.database, job_id).state == "cancelled"

    @staticmethod
    def _refitting(bench: Bench) -> str:
        """A search whose trials are complete, and whose best values are trained again."""
        search_id = bench.submit(best={"action": "refit", "set": {}}, max_trials=1)
        while bench.row(search_id).outcome is None:
            bench.turn()
        return search_id

    def test_a_publication_that_fails_is_the_searchs_failure(self, bench: Bench) -> None:
        search_id = bench.submit_template(
            {"hub": {"model_id": "org/best"}}, best="publish", max_trials=2
        )
        bench.worker.home = bench.settings.home
        bench.worker.fails = _forbidden_when_published
        row = bench.run(search_id)
        assert row.state == "failed"
        assert (row.failure or {})["code"] == "hub_forbidden"
        assert row.best != []


def _forbidden_when_published(claim: Claim) -> Failure | None:
    if claim.follow_up is not None:
        return Failure.from_code(FailureCode.HUB_FORBIDDEN, "The token may not write there.")
    return None
