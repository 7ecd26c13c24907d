"""Searches of hyper-parameters."""
