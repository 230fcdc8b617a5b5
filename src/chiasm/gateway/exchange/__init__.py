"""One request from arrival to its only ending: limits, account, generation, and the order in which they are used."""
