"""Planning over batch sizes: predict them all, run the few best."""
