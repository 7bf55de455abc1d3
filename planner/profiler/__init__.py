"""Running a model to learn about it: the meter, the step, the state around it, the recorder.

The one room that runs a user's training step before there is a plan. It hands a
`planner.documents.Profile` to the pure rooms. Imports torch.
"""
