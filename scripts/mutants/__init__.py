"""Changes one expression at a time and asks whether the tests of its module notice."""
