"""Exact laws, statistics and mutants of the code that ships."""
