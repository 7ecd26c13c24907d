"""What every request passes: limits, authentication, bodies and the server itself."""
