"""Which tests are to notice a change of a core module: the quick ones, the nearest first."""

from typing import Final

# One kind of database or broker is enough for nearly all, and needs no server in each run.
_SQLITE: Final = ("-k", "not postgres and not redis and not valkey")
_MASKED_LM: Final = "tests/tasks/language_modeling/test_masked_lm.py"

TARGETS: Final[dict[str, tuple[str, ...]]] = {
    "service/contract/events.py": ("tests/contract/test_events.py",),
    "service/jobs/submissions.py": ("tests/jobs/test_submissions.py", *_SQLITE),
    "service/jobs/reconciler.py": ("tests/jobs/test_reconciler.py", *_SQLITE),
    "service/jobs/retention.py": (
        "tests/jobs/test_retention.py",
        "tests/jobs/test_retention_prepared.py",
        "tests/jobs/test_retention_uploads.py",
        *_SQLITE,
    ),
    "service/store/claims.py": (
        "tests/store/test_claims.py",
        "tests/store/test_endings.py",
        "tests/store/test_lineage.py",
        *_SQLITE,
    ),
    "service/store/endings.py": ("tests/store/test_endings.py", *_SQLITE),
    "service/api/middleware.py": (
        "tests/api/test_auth.py",
        *(f"tests/api/test_app.py::Test{name}" for name in ("BodyLimit", "RequestId", "CatchAll")),
        "tests/api/test_app.py::TestMetrics",
        *_SQLITE,
    ),
    "service/api/single_flight.py": ("tests/api/test_single_flight.py",),
    "worker/storage/atomic_dir.py": ("tests/storage/test_atomic_dir.py",),
    "worker/failures.py": ("tests/worker/test_failures.py",),
    "worker/tasks/language_modeling/features.py": (
        "tests/tasks/language_modeling/test_rows.py",
        "tests/tasks/language_modeling/test_causal_lm.py::TestBlocks",
        "tests/tasks/language_modeling/test_causal_lm.py::TestData",
        f"{_MASKED_LM}::TestPrepare",
        "tests/tasks/test_data_report.py",
        "tests/tasks/language_modeling/test_causal_lm_objective.py::TestSeparateDocuments",
    ),
    "worker/tasks/language_modeling/masking.py": (
        f"{_MASKED_LM}::TestMasking",
        f"{_MASKED_LM}::TestFeatures",
        f"{_MASKED_LM}::TestJob::test_golden_numbers",
    ),
    "worker/tasks/question_answering/features.py": (
        "tests/tasks/question_answering/test_features.py",
    ),
    "worker/tasks/question_answering/metrics.py": (
        "tests/tasks/question_answering/test_metrics.py",
    ),
    "worker/tasks/question_answering/postprocessing.py": (
        "tests/tasks/question_answering/test_postprocessing.py",
    ),
    "worker/training/early_stopping.py": ("tests/training/test_progress.py",),
    "worker/training/kernels/chunked_cross_entropy.py": (
        "tests/training/kernels/test_chunked_cross_entropy.py",
    ),
    "worker/training/plan.py": (
        "tests/training/test_plan.py",
        "tests/training/optim/test_lr_schedulers.py",
    ),
    "worker/training/progress.py": ("tests/training/test_progress.py",),
    "worker/training/rollback.py": ("tests/training/test_rollback.py",),
    "worker/training/checkpointing/async_saver.py": (
        "tests/training/checkpointing/test_async_saver.py",
    ),
    "worker/training/optim/lr_schedulers.py": (
        "tests/training/optim/test_lr_schedulers.py",
        "tests/training/test_rollback.py::test_a_scaled_schedule_stays_scaled",
    ),
}
