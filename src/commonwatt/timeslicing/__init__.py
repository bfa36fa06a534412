"""ETF: which tenant runs next on this device, and for how long."""
