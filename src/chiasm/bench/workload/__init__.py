"""What is sent when: classes of requests, arrivals, payloads, and the plan that is on disk before anything is sent."""
