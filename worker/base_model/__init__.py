"""The model that a job starts from: finding its files, checking it, or creating it from scratch."""
