"""Simulate: what a run would be like on machines that you do not have.

study        a model, its instances and their costs: what simulations need
trial        measures the costs on this machine
traced       reads them off a trace or a log
costs        a line for each operation: fixed seconds, seconds a row, products
machine      computers and links, from a TOML file
waves        waves planned by the runtime's planner, as seconds and crossings
simulation   events in simulated time: links, losses, what is measured
controller   pumps and retires instances, cuts waves
worker       what a worker plays, by the runtime's schedule
engine       the queue of events; cores that processes share
recorder     events of the runtime's types, for pictures
result       throughput, busy shares, staleness, bytes, memory; tables
plan         searches placement, copies, tiles and waves for a machine
"""

from ampnet.simulate.costs import Measured
from ampnet.simulate.machine import Hosts, Link, Machine, read_machine, this_machine
from ampnet.simulate.result import Result
from ampnet.simulate.study import Study

__all__ = ["Hosts", "Link", "Machine", "Measured", "Result", "Study", "read_machine", "this_machine"]
