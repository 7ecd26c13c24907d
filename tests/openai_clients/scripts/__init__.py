"""What users of the `openai` package write, run with each release in a process of its own."""
