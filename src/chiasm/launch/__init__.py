"""The composition root: settings to objects and processes. The only room that wires everything."""
