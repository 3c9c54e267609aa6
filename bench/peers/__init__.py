"""Peers: the same models as a user of torch would write them. One file for each kind of model."""
