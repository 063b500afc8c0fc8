"""What an operator asks: what is counted for whom, is the store healthy, what would other rates do."""
