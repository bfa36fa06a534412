"""The web side of the live control plane: REST, dashboard, metrics."""
