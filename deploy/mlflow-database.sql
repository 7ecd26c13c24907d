-- The Postgres image runs this once, when its volume is empty. MLflow has its own database, because
-- both it and this service use a table named alembic_version.
CREATE DATABASE mlflow;
