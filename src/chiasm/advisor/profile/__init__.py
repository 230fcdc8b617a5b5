"""Stage costs of a running server, from a few minutes of questions and the receipts of its answers.

Every cost comes from runs of its own, with nothing beside it: texts of several lengths, pictures of several sizes,
answers side by side. Nothing is taken from traffic like that which a simulation is then compared with.
"""
