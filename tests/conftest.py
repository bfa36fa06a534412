"""Hypothesis tries the same examples in every run; ``HYPOTHESIS_PROFILE=explore`` tries new ones."""

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
