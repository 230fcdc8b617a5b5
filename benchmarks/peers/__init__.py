"""One file per engine that is measured; each runs as a process of its own and answers `protocol` on its pipes."""
