"""Where work runs: ``simulated``, ``local``, ``slurm``. Every engine passes one contract test suite."""
