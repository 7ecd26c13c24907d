"""What a worker's stages are told and what they report."""
