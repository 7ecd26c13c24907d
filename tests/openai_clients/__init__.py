"""Pinned releases of the `openai` package, unmodified, against a live server."""
