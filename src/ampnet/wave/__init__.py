"""Waves: whole instances computed together, row by row as `ampnet.plan` laid them out, several waves in flight.

arena      rows of one width, and their gradients
kernels    how the rows of a site are computed, forward and backward
passage    one wave on its way
player     plays the operations of all passages of a worker, in the order of a schedule
"""
