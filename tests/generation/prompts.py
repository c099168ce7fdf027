"""Twenty short chat prompts of several kinds, in our own words."""

PROMPTS = [
    "Write a Python function that reverses a string.",
    "Explain how a hash map works in three sentences.",
    "Count from one to thirty, separated by commas.",
    "Write a short story about a lighthouse keeper.",
    "List ten fruits, one per line.",
    "What is the capital of France, and what is it known for?",
    "Translate to French: The weather is nice today.",
    "Give me a recipe for pancakes.",
    "Write a haiku about the sea.",
    "Why is the sky blue?",
    "Repeat this sentence five times: the quick brown fox jumps over the lazy dog.",
    "Write a SQL query that selects all users older than 30.",
    "Summarise in one sentence: Dogs are loyal animals. They like to play. They need food and water.",
    "What are the first ten prime numbers?",
    "Write a polite email asking for a day off.",
    "Name three rivers in Europe and say where each begins.",
    "Write a for loop in C that prints the numbers 1 to 10.",
    "Describe the life cycle of a butterfly.",
    "Write the alphabet, one letter per line.",
    "What should I pack for a week in the mountains?",
]
