"""Gateway and workers as actors of Ray. What runs in an actor is the process that runs on one machine, too."""
