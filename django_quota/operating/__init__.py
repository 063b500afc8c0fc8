"""What an operator asks: what is counted for whom, is Redis healthy, what would other rates do."""
