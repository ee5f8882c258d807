"""Continual learning on pre-trained networks: one module per table."""
