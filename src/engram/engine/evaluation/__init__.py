"""What comes out of a task, and whether it can be trusted."""
