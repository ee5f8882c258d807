"""Engram measures, and helps to fix, what a neural network forgets."""

__version__ = "0.1.0"
