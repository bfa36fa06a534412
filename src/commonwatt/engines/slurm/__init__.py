"""Jobs of a real Slurm: ``commands`` talks to it, ``parsing`` reads its answers, ``engine`` is the engine over both."""
