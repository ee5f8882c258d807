"""What runs that train together share."""
