"""Keys and tokens are in nothing that is kept or shown."""

from __future__ import annotations

from runner.redact import redact, redact_command


def test_the_values_of_secrets_go_and_the_rest_stays(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "abcdef0123")
    monkeypatch.setenv("HF_TOKEN", "hf_123456")
    monkeypatch.setenv("DB_PASSWORD", "tiny")  # too short to be told from a word
    monkeypatch.setenv("HOME_SWEET_HOME", "nothing special")
    text = "got abcdef0123 and 'hf_123456', a tiny thing, nothing special"
    assert redact(text) == "got <redacted> and '<redacted>', a tiny thing, nothing special"


def test_a_command_line_loses_what_is_given_to_such_fields(monkeypatch):
    monkeypatch.setenv("MY_SECRET", "in the middle")
    words = ["runner", "+log.api_key=k1", "token=t2", "name=x-in the middle", "workload=gelu"]
    assert redact_command(words) == "runner +log.api_key=<redacted> token=<redacted> name=x-<redacted> workload=gelu"
