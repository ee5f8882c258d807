"""Which rows a step trains on, and the batches made of them."""
