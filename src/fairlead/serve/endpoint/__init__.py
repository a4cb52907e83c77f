"""An endpoint that speaks OpenAI's HTTP API, in front of an engine that exists."""
