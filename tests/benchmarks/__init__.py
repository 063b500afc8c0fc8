"""What `make bench` measures, beside bare redis-py and six other limiters."""
