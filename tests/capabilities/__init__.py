"""Capabilities added from outside, through the ports alone: nothing here patches naspipe.

Each has its plain loop, and runs in the simulator and on real stages.
"""
