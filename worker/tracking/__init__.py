"""Sending runs, metrics and models to MLflow."""
