"""The sender of webhooks, its addresses and its requests."""
