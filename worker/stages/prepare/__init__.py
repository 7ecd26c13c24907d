"""The stage that downloads and tokenizes."""
