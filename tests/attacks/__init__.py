"""Attacks on a live control plane, as seen from outside: each breaks something where its defence is missing."""
