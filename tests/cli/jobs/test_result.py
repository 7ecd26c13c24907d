import pytest

from service.cli.jobs import result
from tests.cli.jobs.job_pages import make_job


class TestShowResult:
    def test_metrics_before_and_after_and_where_things_are(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        found = {
            "metrics": {"eval_f1": 48.25, "train_peak_memory_bytes": 1.5 * 1024**3},
            "baseline": {"eval_f1": 5.125},
            "model_path": "jobs/job-1/output",
            "artifacts": [{"name": "model/config.json"}],
        }
        job = make_job(state="succeeded", result=found, mlflow_url="http://m/#/experiments/1")
        result.show_result(job)
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert lines == [
            ["job-1", "succeeded"],
            ["metric", "before", "after"],
            ["eval_f1", "5.125", "48.25"],
            ["train_peak_memory_bytes", "1.5", "GiB"],
            ["model", "jobs/job-1/output"],
            ["try", "it", "finetune", "try", "1"],
            ["get", "it", "finetune", "download", "1"],
            [
                "load",
                "it",
                'transformers.AutoModelForQuestionAnswering.from_pretrained("my-job/model")',
            ],
            ["MLflow", "http://m/#/experiments/1"],
        ]

    def test_a_job_without_training_has_scores_and_files(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        found = {
            "metrics": {"eval_loss": 1.5, "eval_f1": 48.25},
            "baseline": {},
            "artifacts": [{"name": "predictions.json"}, {"name": "data_report.json"}],
        }
        result.show_result(make_job(state="succeeded", result=found, spec={"mode": "evaluate"}))
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert lines == [
            ["job-1", "succeeded"],
            ["metric", "value"],
            ["eval_f1", "48.25"],
            ["eval_loss", "1.5"],
            ["files", "predictions.json,", "data_report.json"],
        ]
