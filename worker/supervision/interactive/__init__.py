"""Previews and predictions: who answers, and with which model."""
