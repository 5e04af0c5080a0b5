"""Layers whose implementation is a config choice: a dict from name to implementation in each file."""
