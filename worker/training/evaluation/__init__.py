"""Evaluation, and what follows from its metric."""
