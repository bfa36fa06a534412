"""Benchmarks: one command each, see README.md."""
