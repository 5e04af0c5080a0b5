"""What people see of comparison.json: the terminal and comparison.md (tables), comparison.html (page, charts), W&B.

All are drawn from its content alone.
"""
