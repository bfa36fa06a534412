"""The papers' figures and tables, reproduced: the paper's value beside ours.

- ``topic``: a topic, its request and its answer.
- ``registry``: all topics by name; light to import.
- ``papers``: the code of the topics, imported when one runs.
"""
