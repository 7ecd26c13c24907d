"""Finds every fault of a search's spec before anything runs, and fills in what was left out."""
