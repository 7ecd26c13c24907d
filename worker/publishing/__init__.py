"""What is published with a model: its card, and its repository on the Hub."""
