"""The papers' figures and tables, run again: the paper's value beside ours.

- ``topic``: what a topic is, what it is asked for and what it answers.
- ``registry``: all topics by name, gathered from the modules of ``papers``: a new file there is a new paper.
- ``papers``: one module a paper, with its topics in ``TOPICS``; light to import, the work is imported when it runs.
"""
