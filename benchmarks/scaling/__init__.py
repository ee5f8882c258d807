"""What grows with tasks, classes, runs, recipes and rows, and how."""
