"""What a client may set for a search of hyper-parameters."""
