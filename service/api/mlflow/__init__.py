"""MLflow behind the service's own authentication."""
