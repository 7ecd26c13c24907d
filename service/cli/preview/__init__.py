"""`finetune preview`: what a job would make of its data."""
