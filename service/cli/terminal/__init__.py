"""What every command needs to talk to the terminal and to the server."""
