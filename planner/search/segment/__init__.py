"""Within one segment: which values to keep, and where to cut its replay. One algorithm a file."""
