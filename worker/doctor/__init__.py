"""`finetune doctor`: small checks of one machine, each in a process of its own."""
