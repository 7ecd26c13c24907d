"""Searches and their trials."""
