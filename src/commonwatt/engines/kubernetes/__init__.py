"""Engine ``kubernetes``: each run of a job is a Pod that this engine places by a Binding."""
