"""The space and the proposals of the measured search (Optuna). Nothing runs here."""
