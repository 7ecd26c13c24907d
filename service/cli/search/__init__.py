"""`finetune search`: hyper-parameter searches, and how they look."""
