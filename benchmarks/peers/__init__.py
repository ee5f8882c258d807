"""The same methods on the same stream in Engram, Avalanche, Mammoth and a plain loop."""
