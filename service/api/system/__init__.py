"""Health, metrics, workers and tasks."""
