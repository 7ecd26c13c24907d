"""Text classification and token classification."""
