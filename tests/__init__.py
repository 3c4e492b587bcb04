"""The tests: a folder for each distribution, `system` for the whole."""
