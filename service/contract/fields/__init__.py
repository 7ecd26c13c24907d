"""What the fields of every section are made of: types, bounds, patterns."""
