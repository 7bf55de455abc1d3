"""The engine's hot paths in C++: following a recorded segment, and replaying it in backward."""
