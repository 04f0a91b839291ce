"""Twelve vendors on one loopback port, behaving as vendors do. Standard library only; their books are a SQLite file."""
