"""Tables of papers as `engram reproduce` wrote them, and runs that set methods side by side."""
