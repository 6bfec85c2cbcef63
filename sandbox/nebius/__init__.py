"""A double of the parts of the Nebius API that move capacity, spoken to with the real `nebius` SDK."""
