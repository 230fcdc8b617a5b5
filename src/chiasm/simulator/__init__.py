"""A fleet in virtual time: the routing and scheduling objects of real serving, over stages that only take time.

What stages cost is a `chiasm.simulator.calibration.Calibration`, from measurements; which workers there are is a
`chiasm.simulator.cluster.Cluster`; what comes in is `chiasm.simulator.traffic`. The same seed gives the same result.
"""
