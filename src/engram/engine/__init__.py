"""The engine: one loop from rows to recorded scores, for one run or hundreds."""
