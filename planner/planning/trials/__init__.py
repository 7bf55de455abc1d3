"""The measured search at work: trials run on the model and are told to the study."""
