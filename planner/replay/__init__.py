"""The replay engine: a tape of the forward's ops, and dropped values made again from it.

Knows tensors and ops, nothing of plans. `applier` opens and closes tapes; `graph` uses the
pure half (`slicing`) so that a prediction and the real replay follow the same program.
"""
