"""Jobs: the one writer of states, claims, endings, and queries."""
