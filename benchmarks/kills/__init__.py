"""Processes that are killed while they train, and what becomes of their runs."""
