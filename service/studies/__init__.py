"""What a search does next, as functions of what it has done: no SQL, no clock, no job."""
