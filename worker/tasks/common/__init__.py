"""Helpers that several tasks share: padding, predictions, feature files and token losses."""
