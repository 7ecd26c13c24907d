"""Optimizers and learning rate schedules by their names in transformers."""
