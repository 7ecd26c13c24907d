"""Objects of OpenAI's API, with every field that its clients' types have."""
