"""Jobs as they happen: one feed of the database for all who watch, sent as server-sent events."""
