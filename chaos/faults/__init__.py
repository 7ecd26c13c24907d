"""What disturbs a connection, a disk or a server."""
