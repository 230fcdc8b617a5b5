"""A grid of loads on several servers side by side: what is measured in which order, and what it says about them.

For every cell and seed all servers get the same requests at the same times, in turns; so their differences are those
of pairs. What was measured is kept at once, and a grid that was cut short goes on. The report compares each topology
with the baseline, cell by cell.
"""
