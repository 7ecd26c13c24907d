"""Projects and what belongs to them: keys, secrets, webhooks, usage, audit."""
