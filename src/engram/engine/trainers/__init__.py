"""Trainers: the same optimiser step for one run or many, eager, captured or compiled."""
