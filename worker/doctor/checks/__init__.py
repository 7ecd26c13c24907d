"""One file for each topic; worker/doctor/registry.py lists the checks in their order."""
