"""Decisions, and nothing else: pure machines over events and effects, standard library only.

No module here reads a clock, draws a random number it was not given, opens a socket or touches a tensor.
"""
