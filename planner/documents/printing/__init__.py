"""Documents as plain text for a terminal. Pure: data in, text out."""
