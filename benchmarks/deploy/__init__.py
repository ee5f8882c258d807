"""What deployed models promise: the gate of a store, and kills while it writes."""
