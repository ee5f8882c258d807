"""What a search costs beside one run."""
