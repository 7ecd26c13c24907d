"""Searches: what users do to them, and what the reconciler does with their trials."""
