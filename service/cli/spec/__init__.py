"""The spec that a command reads, checks and uploads the files of."""
