"""Which drafter, how long, does it pay here? Answered from measured costs and a sample of prompts."""
