"""One module for each paper. Names that begin with an underscore are no papers but parts of one."""
