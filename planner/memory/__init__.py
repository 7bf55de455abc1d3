"""What counts as a byte on each device: meters, and the rules of allocators."""
