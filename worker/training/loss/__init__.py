"""Losses in pieces that need less memory, and what is added to them."""
