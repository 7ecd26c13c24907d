"""A search in SQL is one run in a real MLflow, above the runs of its trials."""

import json
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from chaos.faults.weather import Weather, WeatherProxy
from service.searches import commands
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.scope import EVERYTHING
from service.store.searches import state
from service.store.tables.searches import SearchRow
from service.store.tracking import searches as search_tracking
from tests.searches.conftest import Bench
from tests.searches.simulated_worker import missing_column, search_spec
from tests.support.servers.services import free_port
from tests.support.threads import at_once
from worker.tracking import search_shipper, shipper
from worker.tracking.search_content import Progress, own_tags
from worker.tracking.trackers import MlflowTracker, NewRun, NullTracker, RunStatus


class Search:
    """A search, what ships it, and what MLflow has of it."""

    def __init__(self, bench: Bench, tracker: MlflowTracker, folder: Path) -> None:
        self.bench = bench
        self.database = bench.database
        self.tracker = tracker
        self.client = MlflowClient(tracker._uri)
        self.folder = folder
        self.experiment = f"tests-{folder.name}"
        self.id = ""

    def submit(self, **changes: Any) -> None:
        job = search_spec()["job"] | {"tracking": {"experiment_name": self.experiment}}
        self.id = self.bench.submit(job=job, **changes)

    @property
    def row(self) -> SearchRow:
        return self.bench.row(self.id)

    def until_ended(self, trials: int) -> None:
        """Until so many trials have ended."""
        while sum(trial.end_number is not None for trial in self.bench.trials(self.id)) < trials:
            self.bench.turn()

    def ship(self, tracker: MlflowTracker | NullTracker | None = None) -> bool:
        return search_shipper.sync(self.database, tracker or self.tracker, self.id)

    def ship_trials(self) -> None:
        for trial in self.bench.trials(self.id):
            assert trial.job_id is not None
            shipper.sync(self.database, self.tracker, trial.job_id, self.folder)

    def new_run(self) -> NewRun:
        return NewRun(self.experiment, "rates", own_tags(self.id), self.row.created_at)

    def update(self, **values: object) -> None:
        with self.database.write() as session:
            row = state.get(session, EVERYTHING, self.id)
            for name, value in values.items():
                setattr(row, name, value)

    @property
    def runs(self) -> list[Run]:
        """Of the search and of its trials, oldest first."""
        experiment = self.client.get_experiment_by_name(self.experiment)
        if experiment is None:
            return []
        ids, order = [experiment.experiment_id], ["attributes.start_time ASC"]
        return list(self.client.search_runs(ids, order_by=order))

    @property
    def run(self) -> Run:
        (run,) = [run for run in self.runs if "finetune.is_search" in run.data.tags]
        assert run.info.run_id == self.row.mlflow_run_id
        return run

    def assert_metrics_once(self) -> None:
        run_id = self.run.info.run_id
        for name, points in expected(self).items():
            history = self.client.get_metric_history(run_id, name)
            assert sorted((each.step, each.value) for each in history) == sorted(points), name


@pytest.fixture
def search(
    database: Database,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    tracker: MlflowTracker,
) -> Iterator[Search]:
    settings = Settings(home=tmp_path_factory.mktemp("home"), redis_url=None)
    bench = Bench(database, settings)
    yield Search(bench, tracker, tmp_path)
    bench.dispatcher.close()


def expected(search: Search) -> dict[str, list[tuple[int, float]]]:
    """The metrics of the search's run, straight from the table."""
    ended = [trial for trial in search.bench.trials(search.id) if trial.end_number is not None]
    best: list[tuple[int, float]] = []
    for trial in sorted(ended, key=lambda trial: trial.end_number or 0):
        if trial.scores:
            so_far = max([trial.scores[0], *(value for _, value in best)])
            best.append((trial.end_number or 0, so_far))
    scores = [(trial.number, trial.scores[0]) for trial in ended if trial.scores]
    return {"best_f1": best, "trial_f1": scores}


class TestRun:
    def test_the_first_trial_that_is_shipped_makes_it_and_all_lie_under_it(
        self, search: Search
    ) -> None:
        search.submit()
        search.until_ended(2)
        version = search.row.version
        search.ship_trials()
        run = search.run
        assert search.row.version == version
        assert run.info.status == "RUNNING"
        assert run.info.run_name == "rates"
        children = [each for each in search.runs if each.info.run_id != run.info.run_id]
        trials = search.bench.trials(search.id)
        assert len(children) == len(trials)
        assert {child.data.tags["mlflow.parentRunId"] for child in children} == {run.info.run_id}
        assert {child.data.tags["finetune.search_id"] for child in children} == {search.id}
        by_number = {int(child.data.tags["finetune.trial"]): child for child in children}
        for trial in trials:
            rate = by_number[trial.number].data.params["learning_rate"]
            assert float(rate) == trial.values["training.learning_rate"]
            assert by_number[trial.number].info.run_name == f"rates trial {trial.number}"

    def test_two_workers_at_once_end_with_one(self, search: Search) -> None:
        search.submit()
        search.until_ended(1)
        barrier = threading.Barrier(2)

        class Slow(MlflowTracker):
            def create(self, run: NewRun) -> None:
                barrier.wait(30)  # both have searched and found none
                super().create(run)

        slow = Slow(search.tracker._uri)
        slow._experiment_id(search.experiment)
        assert at_once(2, lambda: search.ship(slow)) == []
        assert search.run
        assert len(search.runs) == 1
        search.assert_metrics_once()

    def test_a_worker_that_dies_before_it_notes_the_run_leaves_the_one_that_is_used(
        self, search: Search
    ) -> None:
        search.submit()
        search.until_ended(1)
        search.tracker.create(search.new_run())
        search.ship()
        assert search.run
        assert len(search.runs) == 1

    def test_one_that_a_killed_worker_made_beside_it_is_removed_by_the_next(
        self, search: Search
    ) -> None:
        search.submit()
        search.until_ended(1)
        search.ship_trials()
        search.tracker.create(search.new_run())
        search.ship()
        assert search.run

    def test_without_a_trial_there_is_none(self, search: Search) -> None:
        search.submit()
        assert not search.ship()
        assert search.row.tracked_version == search.row.version
        commands.cancel(search.database, EVERYTHING, search.id)
        assert search.ship()
        assert search.row.tracking_final
        assert search.runs == []

    def test_cancelled_with_a_run_that_was_not_noted(self, search: Search) -> None:
        search.submit()
        search.tracker.create(search.new_run())
        commands.cancel(search.database, EVERYTHING, search.id)
        assert search.ship()
        assert search.run.info.status == "KILLED"

    def test_without_a_tracker_all_is_final_at_its_end(self, search: Search) -> None:
        search.submit(max_trials=2)
        search.until_ended(1)
        assert not search.ship(NullTracker())
        assert search.row.tracked_version == search.row.version
        search.bench.run(search.id)
        assert search.ship(NullTracker())
        assert (search.row.tracking_final, search.row.mlflow_run_id) == (True, None)

    def test_one_that_the_user_deleted_is_left_alone(self, search: Search) -> None:
        search.submit(max_trials=2)
        search.until_ended(1)
        search.ship()
        search.client.delete_run(search.run.info.run_id)
        search.bench.turn()
        search.ship()
        assert search.row.tracked_version == search.row.version
        search.bench.run(search.id)
        assert search.ship()
        assert search.runs == []


class TestContent:
    def test_while_it_lives_and_at_its_end(self, search: Search) -> None:
        search.submit()
        search.until_ended(2)
        assert not search.ship()
        run = search.run
        assert run.info.status == "RUNNING"
        assert run.data.tags["finetune.trials_complete"] == "2"
        search.assert_metrics_once()
        search.bench.run(search.id)
        assert search.ship()
        run = search.run
        row = search.row
        assert run.info.status == "FINISHED"
        assert row.ended_at is not None
        assert run.info.end_time == round(row.ended_at.timestamp() * 1000)
        assert run.data.tags["finetune.state"] == "succeeded"
        assert run.data.tags["finetune.best_trial"] == str(row.best[0])
        assert run.data.tags["finetune.trials_complete"] == "6"
        assert run.data.metrics["best_f1"] == row.best_scores[0][0]
        search.assert_metrics_once()
        params = run.data.params
        assert params["sampler.name"] == "random"
        assert params["sampler.seed"] == "7"
        assert params["pruner.name"] == "none"
        assert params["max_trials"] == "6"
        assert params["objective.f1"] == "maximize"
        assert json.loads(params["space.training.learning_rate"])["low"] == 1e-6
        note = run.data.tags["mlflow.note.content"]
        assert f"- Search: `{search.id}`" in note
        assert "Trials: 6 of 6 (6 complete)" in note
        assert f"| {row.best[0]} |" in note

    def test_the_files_of_the_end(self, search: Search, tmp_path: Path) -> None:
        search.submit()
        search.bench.run(search.id)
        assert search.ship()
        run_id = search.run.info.run_id
        sizes = search.tracker.sizes(run_id)
        assert {
            *("search/space.json", "search/spec.json", "search/trials.json", "search/trials.csv"),
            *("figures/history.html", "figures/slices.html", "figures/importances.html"),
            "figures/parallel-coordinates.html",
        } <= set(sizes)
        page = Path(search.client.download_artifacts(run_id, "figures/history.html", str(tmp_path)))
        assert "Plotly.newPlot" in page.read_text("utf-8")
        text = Path(search.client.download_artifacts(run_id, "search/trials.json", str(tmp_path)))
        found = json.loads(text.read_text("utf-8"))
        trials = search.bench.trials(search.id)
        assert [each["number"] for each in found] == [trial.number for trial in trials]
        assert [each["scores"] for each in found] == [trial.scores for trial in trials]
        assert [each["values"] for each in found] == [trial.values for trial in trials]
        table = Path(search.client.download_artifacts(run_id, "search/trials.csv", str(tmp_path)))
        lines = table.read_text("utf-8").splitlines()
        assert lines[0] == (
            "number,state,origin,job_id,training.learning_rate,f1,score_step,reason,created_at,"
            "ended_at"
        )
        assert lines[1].startswith(f"0,complete,template,{trials[0].job_id},5e-05,")
        assert len(lines) == 7

    def test_one_that_failed(self, search: Search) -> None:
        search.submit(on_failure="stop")
        search.bench.worker.fails = missing_column
        search.bench.run(search.id)
        assert search.ship()
        run = search.run
        assert (run.info.status, run.data.tags["finetune.state"]) == ("FAILED", "failed")
        assert "Failed: " in run.data.tags["mlflow.note.content"]
        assert "search/trials.json" in search.tracker.sizes(run.info.run_id)

    def test_one_that_is_extended_runs_again(self, search: Search) -> None:
        search.submit(max_trials=2)
        search.bench.run(search.id)
        assert search.ship()
        commands.extend(search.database, EVERYTHING, search.id, 4)
        assert not search.ship()
        run = search.run
        assert (run.info.status, "finetune.state" in run.data.tags) == ("RUNNING", False)
        search.bench.run(search.id)
        assert search.ship()
        run = search.run
        assert run.info.status == "FINISHED"
        assert (run.data.params["max_trials"], run.data.tags["finetune.max_trials"]) == ("2", "4")
        search.assert_metrics_once()

    def test_extended_while_its_end_is_sent(self, search: Search) -> None:
        class Slow(MlflowTracker):
            def end(
                self, run_id: str, status: RunStatus, at: datetime, tags: Mapping[str, str]
            ) -> None:
                commands.extend(search.database, EVERYTHING, search.id, 3)
                super().end(run_id, status, at, tags)

        search.submit(max_trials=1)
        search.bench.run(search.id)
        assert not search.ship(Slow(search.tracker._uri))
        assert search.run.info.status == "RUNNING"
        assert not search.row.tracking_final


class TestOnce:
    def test_shipped_again_from_the_beginning(self, search: Search) -> None:
        search.submit()
        search.until_ended(3)
        search.ship()
        run_id = search.run.info.run_id
        for tag in ("", "null", "[]", '{"ended": 0, "best": [null]}', '{"ended": "x"}'):
            search.client.set_tag(run_id, "mlflow.finetune.sentTrials", tag)
            search.update(tracked_version=-1)
            search.ship()
        search.assert_metrics_once()

    def test_killed_between_the_scores_and_the_note_of_them(self, search: Search) -> None:
        class Killed(MlflowTracker):
            def set_tag(self, run_id: str, key: str, value: str) -> None:
                raise KeyboardInterrupt

        search.submit()
        search.until_ended(3)
        with pytest.raises(KeyboardInterrupt):
            search.ship(Killed(search.tracker._uri))
        assert search.row.tracked_version == -1
        search.until_ended(5)
        search.ship()
        search.assert_metrics_once()

    def test_pages_continue_the_best_so_far(
        self, search: Search, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(search_shipper, "_TRIALS_PER_PAGE", 2)
        search.submit()
        search.until_ended(5)
        search.ship()
        search.assert_metrics_once()
        tag = search.tracker.tag(search.run.info.run_id, "mlflow.finetune.sentTrials")
        best = expected(search)["best_f1"][-1][1]
        assert Progress.read(tag, 1) == Progress(5, (best,))

    def test_two_workers_at_its_end(self, search: Search) -> None:
        search.submit()
        search.bench.run(search.id)
        assert at_once(2, search.ship) == []
        assert search.row.tracking_final
        assert search.run.info.status == "FINISHED"
        search.assert_metrics_once()


class TestAway:
    def test_an_outage_only_delays(self, search: Search) -> None:
        unreachable = MlflowTracker(f"http://127.0.0.1:{free_port()}")
        search.submit(max_trials=2)
        search.until_ended(1)
        assert not search.ship(unreachable)
        row = search.row
        assert row.tracked_version == -1
        assert row.tracking_retry_at is not None
        search.bench.run(search.id)
        assert not search.ship(unreachable)
        row = search.row
        assert not row.tracking_final
        assert row.tracking_retry_at is not None
        assert row.ended_at is not None
        assert 9 < (row.tracking_retry_at - row.ended_at).total_seconds() < 60
        assert search.ship()
        assert search.run.info.status == "FINISHED"
        search.assert_metrics_once()

    def test_it_gives_up_after_a_week(self, search: Search) -> None:
        unreachable = MlflowTracker(f"http://127.0.0.1:{free_port()}")
        search.submit(max_trials=1)
        search.bench.run(search.id)
        search.update(ended_at=db_now(-8 * 86400.0))
        search.ship(unreachable)
        assert search.row.tracking_final

    @pytest.mark.parametrize("weather", [Weather.LOST, Weather.TRUNCATED])
    def test_every_answer_is_lost_once(self, search: Search, weather: Weather) -> None:
        """The server handles each request, but the first answer of its kind is lost or cut."""
        seen: set[tuple[str, str]] = set()

        def forecast(method: str, path: str) -> Weather | None:
            key = (method, path.partition("?")[0])
            if key in seen:
                return None
            seen.add(key)
            return weather

        search.submit(max_trials=3)
        search.bench.run(search.id)
        with WeatherProxy(search.tracker._uri, forecast) as proxy:
            for _ in range(40):
                if search.ship(MlflowTracker(proxy.url)):
                    break
        assert search.row.tracking_final
        assert search.run.info.status == "FINISHED"
        search.assert_metrics_once()
        assert "figures/history.html" in search.tracker.sizes(search.run.info.run_id)


class TestWhen:
    """When the reconciler sends a message about a search."""

    def test_once_until_it_is_shipped_and_then_after_a_while(self, search: Search) -> None:
        search.submit()
        search.until_ended(1)
        assert self._untracked(search) == [search.id]
        self._postpone(search)
        assert self._untracked(search) == []
        search.ship()
        search.until_ended(2)
        assert self._untracked(search) == []
        search.update(tracking_retry_at=db_now(-1))
        assert self._untracked(search) == [search.id]
        search.ship(NullTracker())
        search.update(tracking_retry_at=db_now(-1))
        assert self._untracked(search) == []

    def test_the_end_does_not_wait(self, search: Search) -> None:
        search.submit(max_trials=2)
        search.until_ended(1)
        self._postpone(search)
        search.bench.run(search.id)
        assert self._untracked(search) == [search.id]
        self._postpone(search)
        assert self._untracked(search) == []
        search.update(tracking_retry_at=db_now(-1))
        assert search.ship(NullTracker())
        assert self._untracked(search) == []

    def test_a_message_that_is_noted_late_does_not_delay_what_was_shipped(
        self, search: Search
    ) -> None:
        search.submit()
        search.until_ended(1)
        search.ship(NullTracker())
        shipped = search.row.tracking_retry_at
        self._postpone(search)
        assert search.row.tracking_retry_at == shipped

    @staticmethod
    def _untracked(search: Search) -> list[str]:
        with search.database.read() as session:
            return search_tracking.untracked(session, 10)

    @staticmethod
    def _postpone(search: Search) -> None:
        with search.database.write() as session:
            search_tracking.postpone(session, [search.id], 30)
