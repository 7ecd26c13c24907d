"""How much memory a training takes, and what fits."""
