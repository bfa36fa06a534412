"""Partitioning: which configuration of core clusters, and whose share of it, by a Fisher market."""
