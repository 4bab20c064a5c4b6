"""The long form of the storms in tests/live: the same code, many more rounds, figures at the end."""
