"""Measured speed: ways of generating against each other, on the same prompts, in one run."""
