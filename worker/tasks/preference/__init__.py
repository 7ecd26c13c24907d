"""Learning from preferences: which of two answers is better, or whether an answer is good."""
