"""Stage workers: they speak the worker contract on one side and drive an engine on the other."""
