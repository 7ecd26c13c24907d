"""CPUs and GPUs of this machine, and which job may use which GPU."""
