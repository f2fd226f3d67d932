"""Keys and tokens are neither stored nor shown."""

from __future__ import annotations

from runner.experiment.results import clip, redact, redact_command


def test_values_of_secret_variables_are_redacted(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "abcdef0123")
    monkeypatch.setenv("HF_TOKEN", "hf_123456")
    monkeypatch.setenv("DB_PASSWORD", "tiny")  # too short: it may be an ordinary word
    monkeypatch.setenv("HOME_SWEET_HOME", "nothing special")
    text = "got abcdef0123 and 'hf_123456', a tiny thing, nothing special"
    assert redact(text) == "got <redacted> and '<redacted>', a tiny thing, nothing special"


def test_values_of_secret_fields_are_redacted_in_a_command(monkeypatch):
    monkeypatch.setenv("MY_SECRET", "in the middle")
    words = ["runner", "+log.api_key=k1", "token=t 2", "name=x-in the middle", "workload=gelu"]
    assert redact_command(words) == "runner +log.api_key=<redacted> token=<redacted> name=x-<redacted> workload=gelu"


def test_a_long_text_is_clipped_in_the_middle(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_123456")
    assert clip(f"{'a' * 96}hf_123456{'b' * 10**6}", 100, 5) == f"{'a' * 96}<red [...] bbbbb"
    assert clip("as it is\n", 4, 5) == "as it is\n"


def test_bytes_that_are_not_utf_8_are_escaped():
    assert clip("caf\udce9 日本") == r"caf\udce9 日本"
