"""What one stage may use of the machine, with all processes that it starts."""
