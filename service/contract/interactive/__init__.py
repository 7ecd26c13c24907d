"""Previews and predictions."""
