"""Language models on a shared device: they generate text token by token, many requests in one step.

- ``base``: a loaded language model, its network and its coder of text; key-value caches and attention.
- ``decoder``: a small decoder with random weights, a byte for a token; ``pretrained``: models of transformers.
- ``text``: choosing a token, text from tokens, and where it stops.
- ``generation``: requests, and the batch that they join and leave at any step.
"""
