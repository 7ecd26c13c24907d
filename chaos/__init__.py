"""The attacks of `make faults`: real processes are hurt, and a checker looks what came of it."""
