"""The stage that shows what a job would make of its data."""
