"""Random states, deterministic kernels, and the fingerprint of hardware and software."""
