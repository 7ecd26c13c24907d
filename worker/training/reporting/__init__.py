"""What a training logs, and how long it still takes."""
