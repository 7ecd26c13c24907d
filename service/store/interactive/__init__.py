"""Previews and predictions, and who answers them."""
