"""Training in several processes: DDP, FSDP and DeepSpeed behind one interface."""
