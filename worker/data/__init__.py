"""Reading users' data: where it lies, which format it has, and what every row holds."""
