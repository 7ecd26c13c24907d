"""The service under attack."""
