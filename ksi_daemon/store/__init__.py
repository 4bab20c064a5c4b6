"""The core's tables, one small interface per subject; the only place with the core's SQL."""
