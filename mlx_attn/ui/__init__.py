"""Consoles, numbers for people, and the look of figures and pages."""
