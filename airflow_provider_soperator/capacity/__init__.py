"""Who has how many GPUs of a capacity block when: schedules, plans, and what carries them out."""
