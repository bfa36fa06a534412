"""The code of the papers' topics, one or more modules for each paper."""
