"""Deliberate breaks, one line of the package each, and the tests that must notice them.

python -m tests.mutations                 all of them, as a table; exit code 1 if one goes unnoticed
python -m tests.mutations NAME ...        some of them
"""
