"""IO processors: raw data in, answers out, around one call of the engine. The same class serves every engine."""
