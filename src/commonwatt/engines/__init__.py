"""Where work runs: ``simulated``, ``local``, ``slurm``, ``kubernetes``. Every engine passes one contract test suite."""
