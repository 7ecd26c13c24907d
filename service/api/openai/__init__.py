"""OpenAI's API over the same commands: a thin layer, for programs that were written for it."""
