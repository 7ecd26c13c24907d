"""Faster ways to compute the same numbers, and the checks that they are the same."""
