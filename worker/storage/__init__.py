"""Folders that are written atomically, and a cache that is addressed by content."""
