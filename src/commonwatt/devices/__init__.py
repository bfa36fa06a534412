"""One shared device: what it is, how it is driven, what it measures."""
