"""The pages of docs/ that are generated from the code: `python -m scripts.reference FOLDER`."""
