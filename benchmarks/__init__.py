"""Measurements: speed against a bare loop, and reproductions of published tables."""
