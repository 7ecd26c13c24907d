"""The attacks, by what they attack."""
