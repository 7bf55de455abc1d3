"""Plans, profiles and checks as text for people to read. Pure: text in, text out."""
