"""Reading and cleaning users' data: sources, file formats, rows, and the report on them."""
