"""The worker process itself: its start checks, registration, health check and shutdown."""
