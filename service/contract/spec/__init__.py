"""The sections of a job spec."""
