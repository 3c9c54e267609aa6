"""Plan: control flow, ahead of time: what is to be computed for an instance, and where its rows lie in a wave.

rehearse    send instances through the graph on their states alone
score       what one instance computes, as columns of numbers; kept
sites       where a graph makes rows, which of them lie in one arena, and in which order they are made
layout      the combined scores of a wave
lot         instances that are to be computed together
planner     keeps scores and layouts, and makes those that are missing
"""
