"""The API of OpenAI over the same commands: a thin face, for programs that were written for it."""
