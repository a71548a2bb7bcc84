"""Timing: arms run in interleaved, shuffled rounds, each call once cold and once again warm.

What needs no device (rounds, stop rules, sizes) imports no torch; one file for each kind of clock.
"""
