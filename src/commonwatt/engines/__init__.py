"""Where work really runs. ``simulated`` is discrete-event simulation; every engine passes one contract test suite."""
