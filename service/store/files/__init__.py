"""Uploaded files, uploads in parts, and what retention removes."""
