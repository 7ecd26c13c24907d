"""Saving and loading checkpoints: weights, training state, and writing in the background."""
