"""What is the operating system's: processes, files, secrets at rest."""
