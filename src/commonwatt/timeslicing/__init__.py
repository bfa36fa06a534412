"""ETF: which tenant runs next on this device, for how long?"""
