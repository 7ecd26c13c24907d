"""The stage that trains, evaluates or predicts."""
