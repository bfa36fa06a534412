"""Changes of the tables, in the order of their numbers. A file that was released is never changed."""
