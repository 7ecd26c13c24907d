"""Attacks on processes and servers."""
