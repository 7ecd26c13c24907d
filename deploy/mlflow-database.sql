-- Run by the Postgres image once, when its volume is empty: MLflow keeps its tables apart from ours,
-- because both are versioned by a table named alembic_version.
CREATE DATABASE mlflow;
