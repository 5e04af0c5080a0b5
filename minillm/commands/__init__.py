"""What the scripts do that use a finished run: export, generate, evaluate."""
