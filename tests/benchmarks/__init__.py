"""What `make bench` measures, beside bare redis-py and four other limiters."""
