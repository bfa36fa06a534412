"""Where work really runs. ``simulated`` is the discrete-event simulation; every engine passes one contract test suite."""
