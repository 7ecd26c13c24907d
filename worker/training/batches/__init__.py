"""Batches: the order of the examples, the data loader, and each process's share."""
