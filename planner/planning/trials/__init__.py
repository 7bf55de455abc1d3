"""The measured search at work: trials run on the model, and their results go into the study."""
