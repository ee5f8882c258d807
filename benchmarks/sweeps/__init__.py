"""Sweeps: what planning costs, what processes gain, what a cluster survives."""
