"""What the HTTP servers of gateway and workers share: admission, deadlines, bearer keys, replies. Decides nothing."""
