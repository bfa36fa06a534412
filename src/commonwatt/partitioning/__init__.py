"""Which hardware configuration for these tenants, and whose share of it."""
