"""Workers as processes of their own: which there are, how one starts and stops, how a dead one comes back."""
