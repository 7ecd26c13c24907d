"""The attacks of `make chaos`: they damage real processes, and a checker verifies the results."""
