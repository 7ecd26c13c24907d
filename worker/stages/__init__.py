"""The stages of a job (prepare, train, evaluate, publish, push), each in its own process."""
