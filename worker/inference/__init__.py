"""Runs a finished model on a few rows, with the code of a job with `mode: predict`."""
