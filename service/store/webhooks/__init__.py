"""Endpoints of webhooks and their deliveries."""
