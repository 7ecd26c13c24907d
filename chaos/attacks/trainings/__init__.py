"""Attacks on trainings and their files."""
