"""Processes on this machine, each under a runner of its own that outlives the controller. Linux only."""
