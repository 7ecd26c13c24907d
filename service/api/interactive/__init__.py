"""Previews and predictions: requests that a worker answers within seconds."""
