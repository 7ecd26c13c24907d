"""The data plane: claims stages, supervises them and runs them in child processes."""
