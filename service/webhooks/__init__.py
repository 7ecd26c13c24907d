"""Sends webhooks: which addresses may be reached, how requests are signed, and the sender."""
