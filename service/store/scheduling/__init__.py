"""Workers, the fleet, and whose turn it is."""
