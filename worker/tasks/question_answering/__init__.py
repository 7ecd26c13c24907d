"""Extractive question answering, with a span head or with beam search."""
