"""The tasks that a model can be trained for: a folder per family, an entry in the registry."""
