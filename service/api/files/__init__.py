"""Uploaded data sets."""
