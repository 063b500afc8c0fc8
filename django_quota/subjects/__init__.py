"""Who is limited: from the key of a rule and a request to a subject."""
