"""Sequence-to-sequence tasks: summarization and translation."""
