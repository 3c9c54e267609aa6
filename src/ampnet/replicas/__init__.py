"""Replicas: data parallelism inside the graph.

sync         when and how replicas are synchronised
group        the replicas of one node, and the table on which they put their weights together
member       one replica's part in it: the token that runs round the group
replicate    puts copies of nodes into a graph, behind Cond and Phi
"""
