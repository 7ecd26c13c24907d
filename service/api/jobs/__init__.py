"""Jobs: submission, actions, and what they have written."""
