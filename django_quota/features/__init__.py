"""What your code calls besides limits: counters, slots, reservations, bans, usage and events."""
