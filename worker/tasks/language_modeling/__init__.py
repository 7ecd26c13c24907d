"""Causal and masked language modeling."""
