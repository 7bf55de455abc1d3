"""Across segments: which options to take, first block to last. One algorithm a file."""
