"""Fine-tuning on conversations."""
