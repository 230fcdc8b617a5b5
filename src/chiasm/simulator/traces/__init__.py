"""Traffic that was seen: read from files of several forms, checked as what strangers wrote."""
