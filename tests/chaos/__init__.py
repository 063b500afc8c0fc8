"""The chaos suite: real workers under steady traffic while their Redis is killed, hung, emptied, filled or cut off."""
