from tests.searches.conftest import Bench


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
