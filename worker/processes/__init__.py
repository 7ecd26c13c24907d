"""Starting child processes for stages, and stopping them with their parent."""
