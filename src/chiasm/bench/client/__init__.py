"""Client processes: requests leave at their time, and every event of their answers gets the time at which it came."""
