"""What comes from outside, made harmless before it is used: paths, queries, and the errors that go back. For every plugin."""
