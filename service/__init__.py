"""The control plane: HTTP, SQL and the reconciler. Never imports the ML stack."""

__version__ = "0.1.0"
