"""The attacks of `make chaos`: real processes are hurt, and a checker looks what came of it."""
