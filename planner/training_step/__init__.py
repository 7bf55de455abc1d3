"""What one training step is: the call, the loss, and the state that it must leave as it was."""
