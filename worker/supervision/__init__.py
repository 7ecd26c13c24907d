"""Supervising one running job: its stages, heartbeat, events, stop policy and hang detector."""
