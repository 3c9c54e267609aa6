"""A graph on worker processes of several machines, placed and supervised by Ray. See `ampnet.runtime.cluster.runtime`.

`ampnet.Cluster` is imported from here at its first use; nothing else of the package imports Ray or pyzmq.
"""
