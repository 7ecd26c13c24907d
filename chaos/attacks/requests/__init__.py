"""Attacks by requests."""
