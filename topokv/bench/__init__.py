"""The benchmark: a plan checked before anything is allocated, and processes that each measure it.

A parent aggregates and writes after every step; only the worker loads torch.
"""
