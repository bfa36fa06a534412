"""Jobs of a real Slurm: ``commands`` talks to it, ``reading`` understands it, ``engine`` is the engine over both."""
