"""Whether the promises were kept."""
