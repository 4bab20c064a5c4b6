"""The SQLite engine, database files, and the core's tables: one module per subject, each behind a small interface."""
