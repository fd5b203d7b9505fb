"""The machine: its devices, and operations that take the fastest path that the device has.

Code outside this room never asks for the device; a test checks that.
"""
