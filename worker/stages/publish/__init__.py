"""The stage that pushes a model to the Hub."""
